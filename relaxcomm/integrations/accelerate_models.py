"""Which models and optimizers, of those given to one `prepare`, train together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from relaxcomm.errors import UsageError


def trained(args: Iterable[Any]) -> list[tuple[list[nn.Module], list[Optimizer]]]:
    """What one engine each has: models, and the optimizers among `args` that step their parameters.

    Raises: UsageError for an optimizer without its model.
    """
    args = list(args)
    models = [uncompiled(one) for one in args if isinstance(one, nn.Module)]
    owners = {p: model for model in models for p in model.parameters()}
    found: list[tuple[list[nn.Module], list[Optimizer]]] = []
    for one in args:
        if not isinstance(one, Optimizer):
            continue
        stepped = {owners[p] for g in one.param_groups for p in g["params"] if p in owners}
        if not stepped:
            raise UsageError(
                f"{type(one).__name__} steps no parameter of a model in the same prepare(); give it "
                "together with its model"
            )
        shared = [group for group in found if stepped & set(group[0])]
        stepped.update(*(group[0] for group in shared))
        optimizers = [*(other for group in shared for other in group[1]), one]
        found = [group for group in found if group not in shared]
        found.append(([model for model in models if model in stepped], optimizers))
    return found


def uncompiled(model: nn.Module) -> nn.Module:
    """The model inside what `torch.compile` has made of it."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    return inner
