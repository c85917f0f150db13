"""The GradScaler: by what it multiplies gradients, and whether it is one that the engine knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.amp import GradScaler, grad_scaler
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from relaxcomm.errors import UsageError
from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.replica.named_parameters import parameters_of
from relaxcomm.replica.nested_steps import callers_in
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item


def check_scaler(given: GradScaler | None) -> None:
    """Refuse an optimizer step inside the step of an enabled GradScaler other than the one that was given,
    which skips steps behind the engine's back.

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


class GradientScale:
    """The scale of the gradients that are there now: what a GradScaler multiplies them by.

    Args:
        parameters: whose gradients.
        optimizers: of them.
        scaler: the GradScaler, if one is used.
    """

    def __init__(
        self, parameters: Sequence[Item], optimizers: Sequence[Optimizer], scaler: GradScaler | None
    ) -> None:
        self._parameters, self._optimizers, self._scaler = parameters, optimizers, scaler
        self.tensor: Tensor | None = None
        """A scalar; None without a GradScaler."""

    def remember(self) -> None:
        """Gradients have come, which have the scaler's scale of now."""
        if self._scaler is not None and self._scaler.is_enabled():
            device = self._parameters[0].tensor.device
            scale = self._scaler.scale(torch.ones((), dtype=torch.float32, device=device))
            assert isinstance(scale, Tensor)
            self.tensor = scale

    def forget(self) -> None:
        """No GradScaler unscales what comes from now on."""
        self.tensor = None

    def number(self) -> float:
        """It as a number, or 1; on a GPU the host waits for it."""
        return 1.0 if self.tensor is None else self.tensor.item()

    def left(self, bucket: Bucket) -> Tensor | None:
        """By what a bucket's gradients are still multiplied just before the optimizers' step.

        A GradScaler unscales them before it steps an optimizer, but for a fused one, which does so itself.

        Returns: a scalar tensor, `[numel]` if the tensors' optimizers differ in this, None for nothing.
        """
        if self._scaler is None or self.tensor is None:
            return None
        scaled = [one for one in self._optimizers if _is_scaled(self._scaler, one)]
        held = {id(p) for one in scaled for p in parameters_of(one)}
        left = tuple(id(item.parameter) in held for item in bucket.items)
        if not any(left):
            return None
        if all(left):
            return self.tensor
        is_left = device_numbers(left, torch.bool, bucket.device)
        scales = torch.where(is_left, self.tensor, 1.0)
        numels = tuple(item.tensor.numel() for item in bucket.items)
        sizes = device_numbers(numels, torch.int64, bucket.device)
        return torch.repeat_interleave(scales, sizes, output_size=bucket.numel)


def _is_scaled(scaler: GradScaler, optimizer: Optimizer) -> bool:
    """Whether an optimizer's gradients are multiplied by the scale now, in a step that uses the scaler."""
    note = note_of(scaler, optimizer)
    return note is not None and note["stage"] is OptState.READY


def _stepping() -> GradScaler | None:
    """The scaler whose method has called this, or None."""
    frames = callers_in(grad_scaler)
    scaler = frames[0].f_locals.get("self") if frames else None
    return scaler if isinstance(scaler, GradScaler) else None
