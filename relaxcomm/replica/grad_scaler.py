"""Which GradScaler steps the optimizer: one that the engine does not know skips steps behind its back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch.amp import GradScaler, grad_scaler
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from relaxcomm.errors import UsageError
from relaxcomm.replica.nested_steps import callers_in


def check_scaler(given: GradScaler | None) -> None:
    """Refuse an optimizer step inside the step of an enabled GradScaler other than the one that was given.

    Some microseconds: a look at the callers, of which a scaler is one where it is used.

    Raises: UsageError, saying what to pass.
    """
    found = _stepping()
    if found is None or found is given or not found.is_enabled():
        return
    which = "none" if given is None else "another one"
    raise UsageError(
        f"a GradScaler calls optimizer.step(), and attach() was given {which}: a step that it skips on one "
        "rank alone would pair this rank's exchanges with later ones of its peers; write "
        "attach(model, optimizer, config, scaler=scaler)"
    )


Note: TypeAlias = Mapping[str, Any]
"""What a scaler notes of an optimizer between two of its `update`s."""


def note_of(scaler: GradScaler | None, optimizer: Optimizer) -> Note | None:
    """What a scaler notes of an optimizer until its next `update`; None where none is used."""
    if scaler is None or not scaler.is_enabled():
        return None
    return scaler._per_optimizer_states[id(optimizer)]


def is_stepped(note: Note) -> bool:
    """Whether the scaler has stepped the optimizer, or skipped its step."""
    return note["stage"] is OptState.STEPPED


def is_scaled(scaler: GradScaler, optimizer: Optimizer) -> bool:
    """Whether an optimizer's gradients are multiplied by the scale now, in a step that uses the scaler."""
    state = scaler._per_optimizer_states[id(optimizer)]
    return scaler.is_enabled() and state["stage"] is OptState.READY


def _stepping() -> GradScaler | None:
    """The scaler whose method has called this, or None."""
    frames = callers_in(grad_scaler)
    scaler = frames[0].f_locals.get("self") if frames else None
    return scaler if isinstance(scaler, GradScaler) else None
