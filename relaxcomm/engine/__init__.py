"""The only interpreter of rules."""

from relaxcomm.engine.attach import attach
from relaxcomm.engine.engine import Engine

__all__ = ["Engine", "attach"]
