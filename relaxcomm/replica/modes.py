"""Schedule-free optimizers: what the parameters hold depends on the optimizer's mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch.optim import Optimizer


def in_train_mode(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """The optimizers whose parameters hold other points than are evaluated."""
    return [one for one in optimizers if any(group.get("train_mode") for group in one.param_groups)]


@contextmanager
def trained(optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Have such optimizers in train mode inside, where the parameters are put back."""
    _set(optimizers, train_mode=True)
    yield
    _set(optimizers, train_mode=False)


@contextmanager
def evaluated(optimizers: Iterable[Optimizer], *, keeps: bool) -> Iterator[list[Optimizer]]:
    """Have inside what such optimizers evaluate, an average of the points at which they take gradients.

    Args:
        optimizers: those among them that are in train mode change to eval mode, and back.
        keeps: whether whoever calls puts the parameters back bit for bit afterwards.

    Yields: those that have changed.
    """
    changed = in_train_mode(optimizers)
    for one in changed:
        cast(Any, one).eval()
    try:
        yield changed
    finally:
        if keeps:
            _set(changed, train_mode=True)
        else:
            for one in changed:
                cast(Any, one).train()


def _set(optimizers: Iterable[Optimizer], *, train_mode: bool) -> None:
    """Say in which mode the parameters are."""
    for one in optimizers:
        for group in one.param_groups:
            group["train_mode"] = train_mode
