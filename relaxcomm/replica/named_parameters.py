"""Parameters and buffers of a model by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from relaxcomm.errors import CompositionError
from relaxcomm.replica.sharding import item_of
from relaxcomm.tensors.items import Item

Named: TypeAlias = Sequence[tuple[str, nn.Parameter]]
"""The parameters of a model, each with its name."""


def named_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters with `plain` names; a tied one appears once.

    Torch walks through all modules for it, which takes milliseconds where there are hundreds.
    """
    return [(plain(name), p) for name, p in model.named_parameters()]


def named_buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers with such names: ranks compare them, and may compile the model on one rank alone."""
    return [(plain(name), buffer) for name, buffer in model.named_buffers()]


def plain(name: str) -> str:
    """The name of a parameter or a buffer without what compiling and activation checkpointing add."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def trainable(named: Named) -> list[Item]:
    """The parameters that require a gradient, last registered first, as backward meets them."""
    return [item_of(name, p) for name, p in reversed(named) if p.requires_grad]


def param_groups(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """The groups of all optimizers, one after the other."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """What an optimizer steps, group after group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def check_stepped_once(named: Named, optimizers: Sequence[Optimizer]) -> None:
    """Raise CompositionError for a parameter that several optimizers step."""
    times = Counter(id(p) for one in optimizers for p in parameters_of(one))
    for name, p in named:
        if times[id(p)] > 1:
            raise CompositionError(
                f"{name} is stepped by {times[id(p)]} of the optimizers; give each parameter to one, and "
                "attach with one of two that take turns on the same parameters"
            )
