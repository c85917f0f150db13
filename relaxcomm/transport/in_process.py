"""N ranks as threads of one process under a deterministic scheduler with virtual time.

Exactly one rank runs at a time; when it waits, the one with the smallest virtual clock goes on. So
a program gives the same results and the same virtual times each time it runs, and a deadlock is an
error that says who waits for whom.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from relaxcomm.errors import CommunicationError, DeadlockError
from relaxcomm.operations import (
    Agree,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Label,
    Neighbors,
    Operation,
    Received,
)
from relaxcomm.transport.base import ByteCounters, Membership, Pending, Transport
from relaxcomm.transport.traffic import ring_traffic

T = TypeVar("T")


@dataclass(frozen=True)
class Link:
    """The network of a simulation.

    Args:
        latency_seconds: added to every operation.
        bytes_per_second: at which a rank's bytes leave it.
    """

    latency_seconds: float = 0.0
    bytes_per_second: float = float("inf")


@dataclass(frozen=True, eq=False)
class _Objects:
    value: object


@dataclass
class _Slot:
    """The n-th operation of every rank; it completes when all have posted it."""

    posts: dict[int, tuple[Operation | _Objects, str]] = field(default_factory=dict)
    results: dict[int, Any] | None = None
    ready_at: float = 0.0


class _World:
    """The scheduler that the ranks of one simulation share."""

    def __init__(self, size: int, link: Link) -> None:
        self.size, self.link = size, link
        self.clocks = [0.0] * size
        self.counts = [0] * size
        self.slots: dict[int, _Slot] = {}
        self.waiting: dict[int, tuple[_Slot, str]] = {}
        self.finished: dict[int, str] = {}
        self.gates = [threading.Event() for _ in range(size)]
        self.deadlock: str | None = None

    def post(self, rank: int, operation: Operation | _Objects, label: str) -> _Slot:
        slot = self.slots.setdefault(self.counts[rank], _Slot())
        for other, (theirs, their_label) in slot.posts.items():
            if _signature(theirs, their_label) != _signature(operation, label):
                raise CommunicationError(
                    f"ranks are not at the same place: rank {rank} issues {_signature(operation, label)}, "
                    f"rank {other} issued {_signature(theirs, their_label)}"
                )
        slot.posts[rank] = (operation, label)
        slot.ready_at = max(slot.ready_at, self.clocks[rank])
        self.counts[rank] += 1
        if len(slot.posts) == self.size:
            del self.slots[self.counts[rank] - 1]
            slot.ready_at += self._seconds(operation)
            slot.results = _combine({r: slot.posts[r][0] for r in range(self.size)})
        return slot

    def wait(self, rank: int, slot: _Slot, label: str) -> Any:
        if slot.results is None:
            self.waiting[rank] = (slot, label)
            self._switch(rank)
            del self.waiting[rank]
        if slot.results is None:
            raise self._stuck(rank, slot, label)
        self.clocks[rank] = max(self.clocks[rank], slot.ready_at)
        return slot.results[rank]

    def choose(self) -> int | None:
        """The rank that goes on: the earliest that can, or one that must be told that it never will."""
        live = [r for r in range(self.size) if r not in self.finished]
        ready = [r for r in live if r not in self.waiting or self.waiting[r][0].results is not None]
        if not ready and live and self.deadlock is None:
            waits = "; ".join(f"rank {r} waits at {self.waiting[r][1]}" for r in live)
            gone = "".join(f"; rank {r} {how}" for r, how in self.finished.items())
            self.deadlock = f"no rank can go on: {waits}{gone}"
        return min(ready or live, key=lambda r: (self.clocks[r], r), default=None)

    def _switch(self, rank: int) -> None:
        following = self.choose()
        assert following is not None
        if following != rank:
            self.gates[following].set()
            self.gates[rank].wait()
            self.gates[rank].clear()

    def _stuck(self, rank: int, slot: _Slot, label: str) -> CommunicationError:
        failed = [f"rank {r} {how}" for r, how in self.finished.items() if how.startswith("failed")]
        if failed:
            return CommunicationError(f"rank {rank} at {label}: {'; '.join(failed)}")
        missing = [r for r in range(self.size) if r not in slot.posts]
        return DeadlockError(f"rank {rank} at {label} waits for ranks {missing}; {self.deadlock}")

    def _seconds(self, operation: Operation | _Objects) -> float:
        sent = 0 if isinstance(operation, _Objects) else ring_traffic(operation, self.size)[0]
        return self.link.latency_seconds + sent / self.link.bytes_per_second


class InProcessGroup:
    """One rank's view of a simulation: pass it to `attach(..., process_group=group)`."""

    def __init__(self, world: _World, rank: int) -> None:
        self._world, self._rank = world, rank

    def rank(self) -> int:
        """This rank, named as in a torch ProcessGroup."""
        return self._rank

    def size(self) -> int:
        """The number of ranks."""
        return self._world.size

    def time(self) -> float:
        """This rank's virtual clock, in seconds."""
        return self._world.clocks[self._rank]

    def sleep(self, seconds: float) -> None:
        """Let this rank compute for `seconds` of virtual time."""
        self._world.clocks[self._rank] += seconds

    def transport(self) -> InProcessTransport:
        """A transport for this rank."""
        return InProcessTransport(self._world, self._rank)


class _InProcessPending(Pending):
    def __init__(self, world: _World, rank: int, slot: _Slot, label: str) -> None:
        self._world, self._rank, self._slot, self._label = world, rank, slot, label

    def wait(self) -> Received:
        return cast(Received, self._world.wait(self._rank, self._slot, self._label))


class InProcessTransport(Transport):
    """Operations between the threads of one simulation; CPU tensors only."""

    def __init__(self, world: _World, rank: int) -> None:
        self._world, self._rank = world, rank
        self.counters = ByteCounters()

    @property
    def membership(self) -> Membership:
        return Membership(self._rank, self._world.size)

    def issue(self, operation: Operation, label: Label) -> Pending:
        for tensor in _tensors(operation):
            if tensor.device.type != "cpu":
                raise CommunicationError(
                    f"in-process ranks share one autograd thread a GPU: CPU only, got {tensor.device}"
                )
        sent, received = self.traffic(operation)
        self.counters.sent += sent
        self.counters.received += received
        slot = self._world.post(self._rank, operation, str(label))
        return _InProcessPending(self._world, self._rank, slot, str(label))

    def traffic(self, operation: Operation) -> tuple[int, int]:
        return ring_traffic(operation, self._world.size)

    def gather_objects(self, value: object) -> list[object]:
        slot = self._world.post(self._rank, _Objects(value), "gather objects")
        return cast("list[object]", self._world.wait(self._rank, slot, "gather objects"))

    def announce(self, status: str) -> None:
        """Nothing to do: the scheduler sees every rank."""

    def close(self) -> None:
        """Nothing to give back."""


def single() -> Transport:
    """The transport of a world of one rank."""
    return InProcessTransport(_World(1, Link()), 0)


def simulate(
    function: Callable[[InProcessGroup], T], world_size: int, *, link: Link | None = None
) -> list[T]:
    """Run `function(group)` on every rank of an in-process world.

    Args:
        function: the training program of a rank.
        world_size: number of ranks, at least 1.
        link: the network's latency and bandwidth, in virtual time.

    Returns: what the ranks returned, in rank order.

    Raises: the error of the rank that failed first; DeadlockError if no rank could go on.

    Example:
        >>> simulate(lambda group: group.rank(), 3)
        [0, 1, 2]
    """
    world = _World(world_size, link or Link())
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        world.gates[rank].wait()
        world.gates[rank].clear()
        how = "has finished"
        try:
            results[rank] = function(InProcessGroup(world, rank))
        except BaseException as error:  # re-raised in the caller's thread
            errors.append(error)
            how = f"failed: {type(error).__name__}: {error}"
        finally:
            world.finished[rank] = how
            following = world.choose()
            if following is not None:
                world.gates[following].set()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    world.gates[0].set()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.5)
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(world_size)]


def _tensors(operation: Operation) -> list[Tensor]:
    if isinstance(operation, Neighbors):
        return [*operation.sends.values(), *operation.receives.values()]
    return [operation.tensor]


def _signature(operation: Operation | _Objects, label: str) -> str:
    shape = ""
    if not isinstance(operation, _Objects | Neighbors):
        shape = f" {list(operation.tensor.shape)} {operation.tensor.dtype}"
    return f"{type(operation).__name__.strip('_')}{shape} at {label}"


def _combine(posts: Mapping[int, Any]) -> dict[int, Any]:
    first, ranks = posts[0], range(len(posts))
    if isinstance(first, _Objects):
        return {rank: [posts[r].value for r in ranks] for rank in ranks}
    if isinstance(first, Neighbors):
        return {
            rank: {peer: posts[peer].sends[rank].clone() for peer in posts[rank].receives} for rank in ranks
        }
    tensors = [posts[rank].tensor for rank in ranks]
    if isinstance(first, AllReduce | Agree):
        total = _reduce(tensors, first.reduction)
        return {rank: tensors[rank].copy_(total) for rank in ranks}
    if isinstance(first, AllGather):
        stacked = torch.stack(tensors)
        return {rank: stacked.clone() for rank in ranks}
    if isinstance(first, AllToAll):
        return {rank: torch.stack([tensor[rank] for tensor in tensors]) for rank in ranks}
    assert isinstance(first, Broadcast)
    source = tensors[first.root].clone()
    return {rank: tensors[rank].copy_(source) for rank in ranks}


def _reduce(tensors: list[Tensor], reduction: str) -> Tensor:
    if reduction == "max":
        return torch.stack(tensors).amax(0) if tensors[0].numel() else tensors[0].clone()
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total.div_(len(tensors)) if reduction == "mean" else total
