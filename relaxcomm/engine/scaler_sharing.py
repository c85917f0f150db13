"""Loops whose optimizers one GradScaler steps: steps that it skipped end before another one exchanges."""

from __future__ import annotations

import weakref
from typing import Protocol

from torch.amp import GradScaler

from relaxcomm.engine.optimizer_turns import OptimizerTurns


class Steps(Protocol):
    """What ends a step when its optimizers have had their turn."""

    turns: OptimizerTurns

    def close_step(self) -> None:
        """Every optimizer has stepped, or was skipped."""


_sharing: weakref.WeakKeyDictionary[GradScaler, list[weakref.ref[Steps]]] = weakref.WeakKeyDictionary()


def share(scaler: GradScaler | None, loop: Steps) -> None:
    """A loop begins, maybe beside others."""
    if scaler is not None and loop not in _loops_of(scaler):
        _sharing.setdefault(scaler, []).append(weakref.ref(loop))


def leave(scaler: GradScaler | None, loop: Steps) -> None:
    """The loop has ended."""
    if scaler is not None and scaler in _sharing:
        _sharing[scaler] = [one for one in _sharing[scaler] if one() not in (None, loop)]


def take_turn(scaler: GradScaler | None, loop: Steps) -> None:
    """A loop's step ends: its next one ends after those of the others, if they take turns as before."""
    if scaler is not None and loop in _loops_of(scaler)[:-1]:
        leave(scaler, loop)
        share(scaler, loop)


def close_skipped_steps(scaler: GradScaler | None) -> None:
    """Close the steps that a scaler skipped on this rank, in the order in which the loops last stepped.

    On other ranks they end in that order, too. Before anybody has stepped it is the order of attachment.
    """
    for loop in () if scaler is None else _loops_of(scaler):
        if loop.turns.have_skipped:
            loop.close_step()


def _loops_of(scaler: GradScaler) -> list[Steps]:
    found = (one() for one in _sharing.get(scaler, ()))
    return [loop for loop in found if loop is not None]
