"""Models that an open engine follows."""

from __future__ import annotations

from threading import Lock
from weakref import WeakSet

from torch import nn

_models: WeakSet[nn.Module] = WeakSet()
_lock = Lock()


def add(model: nn.Module) -> None:
    """An engine follows it."""
    with _lock:
        _models.add(model)


def discard(model: nn.Module) -> None:
    """No engine follows it any more."""
    with _lock:
        _models.discard(model)


def all_attached() -> list[nn.Module]:
    """The models that are followed now."""
    with _lock:
        return list(_models)
