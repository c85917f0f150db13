"""Process groups of the engine's own, and what each operation is on them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions, BroadcastOptions

from relaxcomm.network.endings import ended_at_exit
from relaxcomm.network.meeting_place import MeetingPlace
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

_NEVER_SENT = 0x7E57  # a tag
_BURIAL_SECONDS = 5.0  # for groups of ranks that are lost, when the process ends
_REDUCTIONS = {"mean": dist.ReduceOp.AVG, "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def close_connections(group: Any, membership: Membership) -> None:
    """End what is under way on a Gloo group, at both ends of each connection.

    Gloo closes a connection on which a receive has taken too long.
    """
    for rank in range(membership.world_size):
        if rank != membership.rank:
            with suppress(RuntimeError):
                group.recv([torch.empty(1)], rank, _NEVER_SENT).wait(timedelta(milliseconds=1))


class Groups:
    """Groups for tensors where the model is, for what the host must know, for neighbours, and for events.

    Args:
        place: where the ranks meet.
        backend: "nccl" or "gloo".
    """

    def __init__(self, place: MeetingPlace, *, backend: str) -> None:
        self._place, self.on_cpu = place, backend == "gloo"
        self.world_size = place.membership.world_size
        self._is_aborted = False
        self._linked: Any = None
        self._host = place.gloo("host")
        self._main = self._host if self.on_cpu else place.nccl()
        self.control = place.gloo("control")
        """For events, where all ranks meet; what training sends is never on it."""

    def start(self, operation: Operation) -> tuple[list[Any], Received]:
        """Begin an operation that is no request: works to wait for, and what then holds the result."""
        group = self._main
        if isinstance(operation, AllReduce | Agree):
            return [self._all_reduce(operation)], operation.tensor
        if isinstance(operation, AllGather):
            rows = operation.tensor.new_empty((self.world_size, *operation.tensor.shape))
            return [group.allgather([list(rows.unbind(0))], [operation.tensor])], rows
        if isinstance(operation, AllToAll):
            rows = torch.empty_like(operation.tensor)
            return [group.alltoall_base(rows, operation.tensor, [], [])], rows
        if isinstance(operation, Broadcast):
            options = BroadcastOptions()
            options.rootRank = operation.root
            return [group.broadcast([operation.tensor], options)], operation.tensor
        assert not isinstance(operation, Request), "services answer requests"
        return self._exchange_with_neighbors(operation)

    def gather_bytes(self, row: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Where each rank's row (`[k]` bytes) will be, over the group for events, and a work."""
        rows = torch.empty(self.world_size, len(row), dtype=torch.uint8)
        return rows, self.control.allgather([list(rows.unbind(0))], [row])

    def abort(self) -> None:
        """End all that is under way: else two ranks whose operations wait for each other's would wait on."""
        self._is_aborted = True
        gloo = {self._host, self.control} | ({self._linked} if self.on_cpu else set())
        for group in gloo - {None}:
            close_connections(group, self._place.membership)

    def destroy(self) -> None:
        """Let go of them: their threads end when nobody holds them."""
        # A locally synchronised group has its name from its ranks, so once destroyed it cannot be made
        # again: its name would find the old addresses in the store. Only whole-world groups are destroyed.
        if not (self.on_cpu or self._is_aborted) and dist.is_initialized() and not self._place.partial:
            for group in {self._main, self._linked} - {None}:
                dist.destroy_process_group(group)
        self._main = self._host = self._linked = self.control = None

    def _all_reduce(self, operation: AllReduce | Agree) -> Any:
        left = operation.reduction
        if self.on_cpu:  # NCCL's mean divides first by itself
            left = scaled(operation.tensor, left, self.world_size)
        options = AllreduceOptions()
        options.reduceOp = _REDUCTIONS[left]  # type: ignore[assignment]  # torch's stub knows sums alone
        group = self._host if isinstance(operation, Agree) else self._main
        return group.allreduce([operation.tensor], options)

    def _exchange_with_neighbors(self, operation: Neighbors) -> tuple[list[Any], Received]:
        # Ranks have different numbers of neighbours, and NCCL counts a group's operations on each rank.
        # The group is made when all ranks first exchange with neighbours.
        if self._linked is None:
            self._linked = self._place.gloo("neighbors") if self.on_cpu else self._place.nccl()
        sends, takes = sorted(operation.sends.items()), sorted(operation.receives.items())
        if not self.on_cpu:
            return self._exchange_on_gpu(sends, takes), dict(operation.receives)
        works = [self._linked.send([tensor], rank, 0) for rank, tensor in sends]
        works += [self._linked.recv([tensor], rank, 0) for rank, tensor in takes]
        # Each takes one wait of the whole limit, and the sends end with the receives.
        return [ThreadedWork(works, self._place.limit)] if works else [], dict(operation.receives)

    def _exchange_on_gpu(
        self, sends: Sequence[tuple[int, torch.Tensor]], takes: Sequence[tuple[int, torch.Tensor]]
    ) -> list[Any]:
        ranks, group = self._place.ranks, self._linked
        operations = [dist.P2POp(dist.isend, tensor, ranks[rank], group) for rank, tensor in sends]
        operations += [dist.P2POp(dist.irecv, tensor, ranks[rank], group) for rank, tensor in takes]
        works: list[Any] = dist.batch_isend_irecv(operations) if operations else []
        return works


class Burial(threading.Thread):
    """Destroys groups with operations that hang: that takes until the other ranks have let go of theirs.

    Args:
        groups: that nobody uses any more.
    """

    def __init__(self, groups: Groups) -> None:
        super().__init__(name="relaxcomm-burial", daemon=True)
        self._groups = groups

    def start(self) -> None:
        _burials.add(self)
        super().start()

    def run(self) -> None:
        self._groups.abort()
        self._groups.destroy()

    def end(self) -> None:
        """Wait for it, but not for ever."""
        self.join(_BURIAL_SECONDS)


_burials = ended_at_exit(Burial.end)
