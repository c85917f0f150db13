"""What a rank says of itself, and whether two ranks wait for each other in vain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["waits", "asks", "meets", "serves", "closed", "failed"]

_GONE = ("closed", "failed")
AS_MANY_STEPS = "every rank must take as many steps; batches may run out earlier inside engine.join()"


@dataclass(frozen=True)
class Status:
    """What a rank was doing when it said so.

    Args:
        state: "waits" for an operation, "asks" a service, "meets" at an event, "serves" those that still
            train, or is gone.
        words: the same for people: they follow "rank 1".
        events: that it had passed.
        operations: collective ones that it had issued; where it waits for one, those before that one.
    """

    state: State
    words: str
    events: int = 0
    operations: int = 0

    def encode(self) -> str:
        """The status as the store keeps it."""
        return f"{self.state} {self.events} {self.operations} {self.words}"

    @staticmethod
    def decode(text: str) -> Status:
        """From the store."""
        state, events, operations, words = text.split(" ", 3)
        return Status(state, words, int(events), int(operations))  # type: ignore[arg-type]  # what `encode` wrote

    def as_heard(self, mine: Status) -> str:
        """The words, said as old news where another has come farther: who does not wait long says nothing."""
        is_old = self.events < mine.events or self.operations < mine.operations
        return f"{self.words} (it said so earlier)" if is_old and self.state not in _GONE else self.words

    def closed_before(self, mine: Status) -> bool:
        """Whether a rank closed, and what another waits for is not on its way from it."""
        if self.state != "closed" or mine.state == "serves":
            return False
        if mine.state == "asks":
            return True
        return self.events <= mine.events and (mine.state == "meets" or self.operations <= mine.operations)

    def never_comes_to(self, mine: Status) -> bool:
        """Whether a rank that is here takes no part in what another waits for, before that one has gone on.

        Both count what all ranks do in the same order, so old news tell no lies: an operation that the other
        had issued before an event, and this one had not, is one that it never issues.
        """
        if mine.state == "asks" or self.events != mine.events:
            return False
        if mine.state == "serves":
            return self.state == "meets"
        if mine.state == "waits":
            if self.state == "waits":
                return self.operations == mine.operations and self.words != mine.words
            return self.state in ("meets", "serves") and self.operations <= mine.operations
        return self.state == "serves" or (self.state == "waits" and self.operations >= mine.operations)
