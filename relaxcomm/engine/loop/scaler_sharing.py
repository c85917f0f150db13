"""Loops whose optimizers one GradScaler steps: steps that it skipped end before another one exchanges."""

from __future__ import annotations

from typing import TypeAlias
from weakref import WeakKeyDictionary

from torch.amp import GradScaler

from relaxcomm.engine.loop.listeners import StepOwner

_Loops: TypeAlias = WeakKeyDictionary[StepOwner, None]
_sharing: WeakKeyDictionary[GradScaler, _Loops] = WeakKeyDictionary()
"""The loops of each scaler, in the order in which they last stepped."""
_NONE: _Loops = WeakKeyDictionary()


def share(scaler: GradScaler | None, loop: StepOwner) -> None:
    """A loop begins, maybe beside others."""
    if scaler is not None:
        _sharing.setdefault(scaler, WeakKeyDictionary()).setdefault(loop, None)


def leave(scaler: GradScaler | None, loop: StepOwner) -> None:
    """The loop has ended."""
    _loops_of(scaler).pop(loop, None)


def take_turn(scaler: GradScaler | None, loop: StepOwner) -> None:
    """A loop's step ends: its next one ends after those of the others, if they take turns as before."""
    if loop in _loops_of(scaler):
        leave(scaler, loop)
        share(scaler, loop)


def close_skipped_steps(scaler: GradScaler | None) -> None:
    """Close the steps that a scaler skipped on this rank, in the order in which the loops last stepped.

    On other ranks they end in that order, too. Before anybody has stepped it is the order of attachment.
    """
    for loop in () if scaler is None else list(_loops_of(scaler)):
        if loop.turns.have_skipped:
            loop.close_step()


def _loops_of(scaler: GradScaler | None) -> _Loops:
    return _NONE if scaler is None else _sharing.get(scaler, _NONE)
