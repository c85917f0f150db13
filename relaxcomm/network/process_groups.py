"""Process groups of the engine's own, and what each operation is on them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions, BroadcastOptions

from relaxcomm.errors import ConfigError
from relaxcomm.network.communicators import Communicators, PolledWork, Wait
from relaxcomm.network.endings import ended_at_exit
from relaxcomm.network.operations import (
    REDUCED,
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
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.streams import pinned
from relaxcomm.network.threaded_call import ThreadedCall
from relaxcomm.network.transport import Membership
from relaxcomm.system.time_limit import in_thread

_NEVER_SENT = 0x7E57  # a tag
_BURIAL_SECONDS = 5.0  # for groups of ranks that are lost, when the process ends
_FOR_THE_HOST, _WHERE_IT_SAYS = (Agree, Request), (Broadcast, Neighbors)
_REDUCTIONS = {"mean": dist.ReduceOp.AVG, "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def close_connections(group: Any, membership: Membership) -> None:
    """End what is under way on a Gloo group, at both ends of each connection.

    Gloo closes a connection on which a receive has taken too long.
    """
    for rank in range(membership.world_size):
        if rank != membership.rank:
            with suppress(RuntimeError):
                group.recv([torch.empty(1)], rank, _NEVER_SENT).wait(timedelta(milliseconds=1))


def chosen_backend(backend: str, device: torch.device) -> str:
    """What a setting means where the model is.

    Raises: ConfigError for NCCL without CUDA tensors.
    """
    chosen = {"auto": "nccl" if device.type == "cuda" else "gloo"}.get(backend, backend)
    if chosen == "nccl" and device.type != "cuda":
        raise ConfigError(f"backend: nccl needs a model on a GPU, got {device}; use gloo or auto")
    return chosen


class Groups:
    """Groups for tensors where the model is, for what the host must know, for neighbours, and for events.

    Args:
        rendezvous: where the ranks meet.
        backend: "nccl" or "gloo".
        device: where the model is.
        elastic: whether others go on without ranks that are lost. Then the host waits for GPUs, too: nothing
            may be applied that a broken operation has brought.
    """

    def __init__(self, rendezvous: Rendezvous, *, backend: str, device: torch.device, elastic: bool) -> None:
        self._rendezvous, self._is_elastic = rendezvous, elastic
        self.world_size = rendezvous.membership.world_size
        self._linked: Any = None
        self._host = rendezvous.gloo("host")
        self.communicators = Communicators(rendezvous, device) if backend == "nccl" else None
        """Between GPUs; None where the host waits for everything."""
        self.control = rendezvous.gloo("control")
        """For events, where all ranks meet; what training sends is never on it."""

    def waits_on_host(self, operation: Operation) -> bool:
        """Whether the host waits for what an operation brings; else the device's current stream does."""
        return self._is_elastic or self._is_on_host(operation)

    def start(self, operation: Operation, wait: Wait) -> tuple[list[Any], Received]:
        """Begin an operation that is no request.

        Args:
            operation: that all ranks begin.
            wait: for the others, where they make a group for it first.

        Returns: works to wait for, and what then holds the result.
        """
        works, result = self._start(operation, wait)
        if self._is_elastic and self.communicators is not None and not self._is_on_host(operation):
            return [PolledWork(work, self.communicators.error) for work in works], result
        return works, result

    def _start(self, operation: Operation, wait: Wait) -> tuple[list[Any], Received]:
        if isinstance(operation, Neighbors):
            return self._exchange_with_neighbors(operation, wait)
        group = self._host if self._is_on_host(operation) else self._between_gpus("operations", wait)
        if isinstance(operation, REDUCED):
            return [self._all_reduce(group, operation)], operation.tensor
        if isinstance(operation, AllGather):
            rows = operation.tensor.new_empty((self.world_size, *operation.tensor.shape))
            if self.communicators is not None:  # a list of rows would be copied once more
                return [group._allgather_base(rows, operation.tensor)], rows
            return [group.allgather([list(rows.unbind(0))], [operation.tensor])], rows
        if isinstance(operation, AllToAll):
            rows = torch.empty_like(operation.tensor)
            return [group.alltoall_base(rows, operation.tensor, [], [])], rows
        if isinstance(operation, Broadcast):
            options = BroadcastOptions()
            options.rootRank = operation.root
            return [group.broadcast([operation.tensor], options)], operation.tensor
        raise AssertionError("services answer requests")

    def gather_bytes(self, row: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Where each rank's row (`[k]` bytes) will be, over the group for events, and a work."""
        rows = torch.empty(self.world_size, len(row), dtype=torch.uint8)
        return rows, self.control.allgather([list(rows.unbind(0))], [row])

    def bury(self) -> None:
        """Let go of them though operations hang: that takes until the other ranks have let go of theirs."""
        _burials.add(in_thread(self._abort))

    def _abort(self) -> None:
        """End all that is under way: else two ranks whose operations wait for each other's would wait on."""
        if self.communicators is not None:
            self.communicators.abort()
        for group in (self._host, self.control, self._linked):
            if group is not None:
                close_connections(group, self._rendezvous.membership)
        self.destroy()

    def destroy(self) -> None:
        """Let go of them: their threads end when nobody holds them."""
        if self.communicators is not None:
            self.communicators.destroy(self._rendezvous.limit)
        self._host = self._linked = self.control = None

    def _is_on_host(self, operation: Operation) -> bool:
        if self.communicators is None or isinstance(operation, _FOR_THE_HOST):
            return True
        return isinstance(operation, _WHERE_IT_SAYS) and operation.on_host

    def _between_gpus(self, purpose: str, wait: Wait) -> Any:
        assert self.communicators is not None, "gloo's operations are on the host"
        return self.communicators.get(purpose, wait)

    def _all_reduce(self, group: Any, operation: AllReduce | Agree) -> Any:
        left = operation.reduction
        if self.communicators is None:  # NCCL's mean divides first by itself
            left = scaled(operation.tensor, left, self.world_size)
        options = AllreduceOptions()
        options.reduceOp = _REDUCTIONS[left]  # type: ignore[assignment]  # torch's stub knows sums alone
        return group.allreduce([operation.tensor], options)

    def _exchange_with_neighbors(self, operation: Neighbors, wait: Wait) -> tuple[list[Any], Received]:
        # Ranks have different numbers of neighbours, and NCCL counts a group's operations on each rank.
        # The group is made when all ranks first exchange with neighbours, those that have none, too.
        sends, takes = sorted(operation.sends.items()), sorted(operation.receives.items())
        result = dict(operation.receives)
        if not self._is_on_host(operation):
            group = self._between_gpus("neighbors", wait)
            return _exchange_at_once(group, sends, takes), result
        if self._linked is None:
            wait(ThreadedCall(self._link))
        # Gloo takes every pointer here for one into the host's memory; only its collectives know GPUs.
        copies = {id(tensor): tensor.cpu() for _, tensor in sends}  # are there when this returns
        landings = [(tensor, pinned(tensor)) for _, tensor in takes if tensor.is_cuda]
        room = {id(tensor): memory for tensor, memory in landings}
        works = [self._linked.send([copies[id(tensor)]], rank, 0) for rank, tensor in sends]
        works += [self._linked.recv([room.get(id(tensor), tensor)], rank, 0) for rank, tensor in takes]
        # Each takes one wait of the whole limit, and the sends end with the receives.
        return [ThreadedWork(works, self._rendezvous.limit, landings)] if works else [], result

    def _link(self) -> None:
        # By a connection of its own: it may wait on for a rank that is lost, when the others have gone on.
        # In the time of any operation: it is made in the midst of training, where a rank may be slow.
        place = self._rendezvous
        place = replace(place, store=place.store.clone(), making=place.limit)
        self._linked = place.gloo("neighbors of the host")


def _exchange_at_once(
    group: Any, sends: Sequence[tuple[int, torch.Tensor]], takes: Sequence[tuple[int, torch.Tensor]]
) -> list[Any]:
    """One rank's sends and receives as one work: NCCL would do them in turn, each waiting for its peer."""
    if not (sends or takes):
        return []
    group._start_coalescing()
    for rank, tensor in sends:
        group.send([tensor], rank, 0)
    for rank, tensor in takes:
        group.recv([tensor], rank, 0)
    return [group._end_coalescing()]


_burials: WeakSet[futures.Future[None]] = ended_at_exit(
    lambda burial: futures.wait([burial], _BURIAL_SECONDS)
)
