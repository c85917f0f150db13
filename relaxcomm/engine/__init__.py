"""Follows a training loop: attaches to a model, tells each step what happens, switches, shows and saves."""

from relaxcomm.engine.attach import attach
from relaxcomm.engine.engine import Engine

__all__ = ["Engine", "attach"]
