"""The one interface between the engine and a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from relaxcomm.operations import Label, Operation, Received


@dataclass(frozen=True)
class Membership:
    """Who takes part now. Nothing else stores a rank or a world size."""

    rank: int
    world_size: int


@dataclass
class ByteCounters:
    """Bytes that this rank handed to, and took from, the network since attach."""

    sent: int = 0
    received: int = 0


class Pending(ABC):
    """An operation that was issued and may still be on its way."""

    @abstractmethod
    def wait(self) -> Received:
        """Return what was received.

        On a CPU backend this blocks, at most `timeout_seconds`; on CUDA it orders the current
        stream behind the operation and returns at once.

        Raises: CommunicationError, naming the operation's label and who is missing.
        """


class Transport(ABC):
    """Issues operations in the order of the calls; never from a callback or another thread."""

    counters: ByteCounters

    @property
    @abstractmethod
    def membership(self) -> Membership:
        """This rank and the number of ranks."""

    @abstractmethod
    def issue(self, operation: Operation, label: Label) -> Pending:
        """Start `operation` and return without waiting for it."""

    @abstractmethod
    def traffic(self, operation: Operation) -> tuple[int, int]:
        """Bytes that this rank sends and receives for `operation`, as this backend really does it."""

    @abstractmethod
    def gather_objects(self, value: object) -> list[object]:
        """Collect a picklable value from every rank, in rank order; blocking, for attach and close."""

    @abstractmethod
    def announce(self, status: str) -> None:
        """Publish what became of this rank ("closed at step 12", "failed: …") for waiting peers."""

    @abstractmethod
    def close(self) -> None:
        """Give back what this transport made. No communication; safe to call twice."""
