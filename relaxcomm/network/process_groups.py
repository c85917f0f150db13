"""Process groups of the engine's own, and what each operation is on them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from relaxcomm.network.operations import (
    Agree,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Neighbors,
    Operation,
    Received,
    Request,
)
from relaxcomm.network.point_to_point import ThreadedWork
from relaxcomm.network.reductions import scaled
from relaxcomm.network.transport import Membership

_REDUCTIONS = {"mean": dist.ReduceOp.AVG, "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Groups:
    """Groups for tensors where the model is, for what the host must know, for neighbours, and for events.

    Args:
        ranks: global ranks of all that take part.
        backend: "nccl" or "gloo".
        limit: after which torch gives up an operation.
    """

    def __init__(self, ranks: Sequence[int], *, backend: str, limit: timedelta) -> None:
        self.ranks, self.on_cpu = ranks, backend == "gloo"
        self._backend, self._limit = backend, limit
        # A locally synchronised group has its name from its ranks, so once destroyed it cannot be made
        # again: its name would find the old addresses in the store. Only whole-world groups are destroyed.
        self.partial = len(ranks) < dist.get_world_size()
        self._linked: Any = None
        self._main = self._make(backend)
        self._host = self._main if self.on_cpu else self._make("gloo")
        self.control = self._make("gloo")
        """For events, where all ranks meet; what training sends is never on it."""
        # Asked for several times a step, of which torch's answer would take most.
        self.membership = Membership(dist.get_rank(self._main), dist.get_world_size(self._main))

    def start(self, operation: Operation) -> tuple[list[Any], Received]:
        """Begin an operation that is no request: works to wait for, and what then holds the result."""
        group, world = self._main, len(self.ranks)
        if isinstance(operation, AllReduce | Agree):
            where = self._host if isinstance(operation, Agree) else group
            left = operation.reduction
            if self.on_cpu:  # NCCL's mean divides first by itself
                left = scaled(operation.tensor, left, world)
            op = _REDUCTIONS[left]
            return [dist.all_reduce(operation.tensor, op, group=where, async_op=True)], operation.tensor
        if isinstance(operation, AllGather):
            rows = operation.tensor.new_empty((world, *operation.tensor.shape))
            work = dist.all_gather(list(rows.unbind(0)), operation.tensor, group=group, async_op=True)
            return [work], rows
        if isinstance(operation, AllToAll):
            rows = torch.empty_like(operation.tensor)
            return [dist.all_to_all_single(rows, operation.tensor, group=group, async_op=True)], rows
        if isinstance(operation, Broadcast):
            root = self.ranks[operation.root]
            return [dist.broadcast(operation.tensor, root, group=group, async_op=True)], operation.tensor
        assert not isinstance(operation, Request), "services answer requests"
        return self._exchange_with_neighbors(operation)

    def destroy(self) -> None:
        """Let go of them, if that can be."""
        if self.partial or not dist.is_initialized():
            return
        for group in {self._main, self._host, self._linked, self.control} - {None}:
            dist.destroy_process_group(group)
        self._main = self._host = self._linked = self.control = (
            None  # their threads end when nobody holds them
        )

    def _make(self, backend: str) -> Any:
        return dist.new_group(
            list(self.ranks),
            backend=backend,
            timeout=self._limit,
            use_local_synchronization=self.partial,
        )

    def _exchange_with_neighbors(self, operation: Neighbors) -> tuple[list[Any], Received]:
        if self._linked is None:
            # Ranks have different numbers of neighbours, and torch counts a group's operations on each rank.
            # It is made when all ranks first exchange with neighbours.
            self._linked = self._make(self._backend)
        group, ranks = self._linked, self.ranks
        sends = [dist.P2POp(dist.isend, t, ranks[r], group) for r, t in sorted(operation.sends.items())]
        takes = [dist.P2POp(dist.irecv, t, ranks[r], group) for r, t in sorted(operation.receives.items())]
        works: list[Any] = dist.batch_isend_irecv(sends + takes) if sends or takes else []
        if self.on_cpu and works:
            # Each takes one wait of the whole limit, and the sends end with the receives.
            works = [ThreadedWork(works, self._limit)]
        return works, dict(operation.receives)
