"""The mean model, for as long as Lightning validates or saves it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from relaxcomm.engine import Engine


class MeanModel:
    """Holds it where replicas may differ; all ranks do so together.

    Args:
        engine: gives that of a `fit` that goes on.
    """

    def __init__(self, engine: Callable[[], Engine | None]) -> None:
        self._engine = engine
        self._averaged: AbstractContextManager[None] | None = None  # while it is entered

    @property
    def is_held(self) -> bool:
        """Whether the module is that now, and not this rank's replica."""
        return self._averaged is not None

    def hold(self) -> None:
        """Have the module be the mean from now on."""
        engine = self._engine()
        if self._averaged is None and engine is not None and engine.replicas_may_differ:
            averaged = engine.averaged()
            averaged.__enter__()
            self._averaged = averaged

    def let_go(self) -> None:
        """Go on with this rank's own replica."""
        if self._averaged is not None:
            self._averaged.__exit__(None, None, None)
            self._averaged = None
