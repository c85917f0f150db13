"""Gradients and moments that lie in memory as fused optimizers take for granted."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from relaxcomm.replica.sharding import like
from relaxcomm.system.torch_classes import derives_from
from relaxcomm.tensors.items import local
from relaxcomm.tensors.memory_order import laid_out_like


def lay_out_as_parameters(optimizer: Optimizer) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Give gradients and moments the strides of their parameters, where an optimizer's groups are fused.

    A view into a flat buffer lies as the parameter did when the buffer was laid out, maybe in another memory
    format; so does a moment that was made before the model was converted, or a tensor of the training loop's.

    Returns: parameters, their gradients, and the copies in whose place they are put back after the step.
    """
    replaced = []
    # Of a first step that a GradScaler skips, torch 2.13 leaves whatever was in memory as the momentum.
    may_skip = getattr(optimizer, "found_inf", None) is not None and derives_from(type(optimizer), "SGD")
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            if parameter.grad is None:
                continue
            laid_out = _laid_out(parameter, parameter.grad)
            if laid_out is not parameter.grad:
                replaced.append((parameter, parameter.grad, laid_out))
                parameter.grad = laid_out
            if not local(parameter).is_contiguous():  # seldom, so that moments are not looked at in each step
                kept = optimizer.state.get(parameter, {})
                tensors = {name: value for name, value in kept.items() if isinstance(value, Tensor)}
                kept.update({name: _laid_out(parameter, value) for name, value in tensors.items()})
            if may_skip and group["momentum"] and not group["dampening"]:  # by which 0 begins as none does
                kept = optimizer.state[parameter]
                if kept.get("momentum_buffer") is None:
                    kept["momentum_buffer"] = torch.zeros_like(parameter.grad)
    return replaced


def put_back(replaced: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Make `.grad` again what `lay_out_as_parameters` has replaced, as the optimizer has left its copy.

    Where a hook or the optimizer itself has cleared it meanwhile, or put another in its place, that stays.
    """
    for parameter, gradient, laid_out in replaced:
        local(gradient).copy_(local(laid_out))  # who holds it looks at it there
        if parameter.grad is laid_out:
            parameter.grad = gradient
    replaced.clear()  # nobody but the parameter is to hold its gradient


def _laid_out(parameter: Tensor, values: Tensor) -> Tensor:
    """The same, unless they lie in another order."""
    held = local(values)
    laid_out = laid_out_like(local(parameter), held)
    return values if laid_out is held else like(parameter, laid_out)
