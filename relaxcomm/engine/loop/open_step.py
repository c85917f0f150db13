"""How far the training loop has come with the step that is open."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Reached(Enum):
    """What the backward under way has reached."""

    NOTHING = auto()  # there is none, or no parameter has its gradient
    PARAMETERS = auto()
    PEERS = auto()  # the gradients are exchanged as they come


@dataclass
class OpenStep:
    """What was seen of a step; a new one where the next begins, which may be in a backward."""

    backward: Reached = Reached.NOTHING
    is_called: bool = False
    """Whether the model itself was called."""
    is_accumulated: bool = False
    """Whether a backward under no_sync has reached parameters."""
    is_stepping: bool = False
    """Whether the first optimizer's step has begun, and not every one has ended."""

    @property
    def exchanges(self) -> bool:
        """Whether a backward is under way, or has failed, for whose gradients peers wait."""
        return self.backward is Reached.PEERS

    @property
    def has_begun(self) -> bool:
        """Whether gradients are there that belong to it."""
        return self.exchanges or self.is_accumulated or self.is_stepping

    def reach_parameters(self) -> None:
        """Some have their gradients."""
        if self.backward is Reached.NOTHING:
            self.backward = Reached.PARAMETERS
