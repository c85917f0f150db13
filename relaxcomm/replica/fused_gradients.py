"""Gradients that lie in memory as fused optimizers take for granted."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from relaxcomm.replica.sharding import is_sharded


def lay_gradients_as_parameters(optimizer: Optimizer) -> None:
    """Give gradients the strides of their parameters, where an optimizer's groups are fused.

    A view into a flat buffer lies as the parameter did when the buffer was laid out, maybe in another memory
    format. Fused kernels go through the memory of both side by side.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            gradient = parameter.grad
            if gradient is None or gradient.stride() == parameter.stride() or is_sharded(parameter):
                continue
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
