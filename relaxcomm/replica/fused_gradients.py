"""Gradients that lie in memory as fused optimizers take for granted."""

from __future__ import annotations

from torch.optim import Optimizer

from relaxcomm.replica.sharding import like
from relaxcomm.tensors.buckets import local
from relaxcomm.tensors.memory_order import laid_out_like


def lay_gradients_as_parameters(optimizer: Optimizer) -> None:
    """Give gradients the strides of their parameters, where an optimizer's groups are fused.

    A view into a flat buffer lies as the parameter did when the buffer was laid out, maybe in another memory
    format.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            if parameter.grad is None:
                continue
            gradient = local(parameter.grad)
            laid_out = laid_out_like(local(parameter), gradient)
            if laid_out is not gradient:
                parameter.grad = like(parameter, laid_out)
