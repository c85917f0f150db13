"""The one interface between the engine and a network."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast

from torch import Tensor

from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.operations import Label, Operation, Received
from relaxcomm.network.traffic import traffic

T = TypeVar("T")


@dataclass(frozen=True)
class Membership:
    """Who takes part now. Nothing else stores a rank or a world size.

    Args:
        rank: of this worker, from 0.
        world_size: number of workers.

    Example:
        >>> import relaxcomm
        >>> from relaxcomm.plugin import Membership
        >>> def me(group):
        ...     return Membership(group.rank(), group.size())
        >>> relaxcomm.simulate(me, 2)[1]
        Membership(rank=1, world_size=2)
    """

    rank: int
    world_size: int


ALONE = Membership(0, 1)
"""One worker without others."""


class Pending(ABC):
    """An operation that was issued and may still be on its way."""

    @abstractmethod
    def arrived(self) -> bool:
        """Whether `wait` would return at once.

        Raises: CommunicationError, as `wait` does, if the operation failed or has taken too long.
        """

    @abstractmethod
    def wait(self) -> Received:
        """Return what was received.

        On a CPU backend this blocks, at most `timeout_seconds`; on CUDA it orders the current
        stream behind the operation and returns at once.

        Raises: CommunicationError, naming the operation's label and who is missing.
        """


ServiceKey: TypeAlias = tuple[str, int]
"""A rule and a bucket, as in a label."""


class Service(ABC):
    """What a rank answers to requests: a state machine without I/O, called by one thread at a time.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Service
        >>> class Counter(Service):
        ...     asked = 0
        ...     def answer(self, client, request):
        ...         self.asked += 1
        ...         return [(client, torch.tensor([self.asked]))]
        ...     def leave(self, client):
        ...         return []
        ...     def export(self):
        ...         return {"asked": torch.tensor(self.asked)}
        ...     def restore(self, saved):
        ...         self.asked = int(saved["asked"])
        >>> counter = Counter()
        >>> [counter.answer(client, torch.empty(0)) for client in (0, 2)]
        [[(0, tensor([1]))], [(2, tensor([2]))]]
    """

    now: Callable[[], float] = time.monotonic
    """Seconds on the clock of the transport that serves it."""

    @abstractmethod
    def answer(self, client: int, request: Tensor) -> Sequence[tuple[int, Tensor]]:
        """Take a request in, which may be overwritten later; the answers to give now, as `(rank, reply)`."""

    @abstractmethod
    def leave(self, client: int) -> Sequence[tuple[int, Tensor]]:
        """A rank asks nothing any more; the answers that can now be given."""

    def due(self) -> float | None:
        """When `expire` is to be called, None for never; asked when serving begins and after each call."""
        return None

    def expire(self) -> Sequence[tuple[int, Tensor]]:
        """The time that was due has come; the answers to give now."""
        return []

    def part(self) -> Tensor | None:
        """This rank's part of a model that all ranks' services hold together, or None."""
        return None

    def taken(self, client: int) -> int:
        """How many rounds of a client's pushes `part` holds; asked when ranks are lost."""
        return 0

    def has_met(self) -> bool:
        """Whether others have a part in its last answer to this rank; asked where that asks nobody else."""
        return True

    def give_up(self) -> None:  # noqa: B027  # most keep no requests
        """Forget requests that were not answered: ranks are lost, and those who are left serve anew."""

    def rest(self) -> Tensor | None:
        """What is still to be added to this rank's parameters when all have left, or None."""
        return None

    @abstractmethod
    def export(self) -> dict[str, Tensor]:
        """A copy of its state, for a checkpoint."""

    @abstractmethod
    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put exported state back."""


class Transport(ABC):
    """Issues operations in the order of the calls; never from a callback or another thread."""

    counters: ByteCounters
    shards: Transport | None = None
    """To the ranks that hold the other shards of this rank's replica; None where it is whole."""

    @property
    @abstractmethod
    def membership(self) -> Membership:
        """This rank and the number of ranks."""

    @abstractmethod
    def now(self) -> float:
        """Seconds on the clock on which operations take time."""

    def processor_seconds(self) -> float:
        """Processor seconds of this thread's work so far; always 0 where the clock does not run by itself."""
        return time.thread_time()

    def device_seconds(self) -> tuple[float, float]:
        """What was measured on a GPU, for which the host does not wait, since this was asked last.

        Returns: seconds in which its stream waited for others, and in which an exchange was on its way.
        """
        return 0.0, 0.0

    @abstractmethod
    def issue(self, operation: Operation, label: Label) -> Pending:
        """Start `operation` and return without waiting for it."""

    def traffic(self, operation: Operation) -> tuple[int, int]:
        """Bytes that this rank sends and receives for `operation`."""
        mine = self.membership
        return traffic(operation, mine.rank, mine.world_size)

    @abstractmethod
    def serve(self, key: ServiceKey, service: Service, request: Tensor, reply: Tensor) -> None:
        """Answer requests for `key`, of the size of a row of `request` and `reply`; on every rank."""

    @abstractmethod
    def leave(self) -> None:
        """Say goodbye to all services, and go on serving until all ranks have."""

    @abstractmethod
    def meet(self, event: str, step: int | None = None) -> None:
        """Go on when all ranks have come to an event such as "averaged()"; for what is rare.

        Args:
            event: the same on all ranks.
            step: of the training loop, the same on all ranks; None where they have clocks of their own.

        Raises: CommunicationError, on all ranks, if one is elsewhere, or has issued other operations.
        """

    @abstractmethod
    def gather_objects(self, value: object, event: str, step: int | None = None) -> list[object]:
        """Collect a picklable value from every rank, in rank order, at an event as `meet` has it."""

    @property
    def process(self) -> Membership:
        """This process among all, those that hold a replica together one after the other."""
        mine, shard = self.membership, ALONE if self.shards is None else self.shards.membership
        return Membership(mine.rank * shard.world_size + shard.rank, mine.world_size * shard.world_size)

    def gather_all(self, value: T, event: str, step: int | None = None) -> list[T]:
        """Collect a picklable value from every process, in the order of `process`, see `gather_objects`."""
        if self.shards is None:
            return cast("list[T]", self.gather_objects(value, event, step))
        replicas = self.gather_objects(self.shards.gather_objects(value, event, step), event, step)
        return [one for held in cast("list[list[T]]", replicas) for one in held]

    @abstractmethod
    def announce(self, status: str) -> None:
        """Publish what became of this rank ("closed at step 12", "failed: …") for waiting peers."""

    @abstractmethod
    def close(self) -> None:
        """Give back what this transport made. No communication; safe to call twice."""
