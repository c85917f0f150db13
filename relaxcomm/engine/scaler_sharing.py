"""Loops whose optimizers one GradScaler steps: steps that it skipped end in the order in which they began."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch.amp import GradScaler

if TYPE_CHECKING:
    from relaxcomm.engine.loop import Loop

_sharing: weakref.WeakKeyDictionary[GradScaler, list[weakref.ref[Loop]]] = weakref.WeakKeyDictionary()


def share(scaler: GradScaler | None, loop: Loop) -> None:
    """A loop begins, maybe beside others."""
    if loop not in sharing(scaler) and scaler is not None:
        _sharing.setdefault(scaler, []).append(weakref.ref(loop))


def leave(scaler: GradScaler | None, loop: Loop) -> None:
    """It has ended."""
    if scaler is not None and scaler in _sharing:
        _sharing[scaler] = [one for one in _sharing[scaler] if one() not in (None, loop)]


def sharing(scaler: GradScaler | None) -> list[Loop]:
    """All of a scaler, the first attached first."""
    found = (one() for one in _sharing.get(scaler, ())) if scaler is not None else ()
    return [loop for loop in found if loop is not None]
