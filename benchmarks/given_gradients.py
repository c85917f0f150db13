"""A loss whose gradients are handed over, so that backward computes nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Given(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, *ctx.gradients


def loss_of(gradients: list[Tensor], *parameters: Tensor) -> Tensor:
    """Whose backward gives each parameter its gradient."""
    loss: Tensor = _Given.apply(gradients, *parameters)  # type: ignore[no-untyped-call]  # torch's
    return loss
