"""Hooks on what a model returns: they tell of the backward that begins there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from relaxcomm.system.compiler import uncompiled
from relaxcomm.system.weak_methods import weakly


class OutputHooks:
    """Tells when a backward reaches what the model has returned.

    From there the end of the outermost backward is found: under reentrant checkpointing, a callback queued
    from inside fires when the nested backward ends.

    Args:
        tell: called there, once for each tensor.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._arrives = uncompiled(weakly(self._reached))
        self._leaves = WeakTensorKeyDictionary()  # that the model returns, each with its hook

    def watch(self, output: Any) -> None:
        """Tell of this, which the model has returned, however it is nested."""
        for tensor in _tensors(output):
            if tensor.requires_grad and not (tensor.is_leaf and tensor in self._leaves):
                handle = tensor.register_hook(self._arrives)  # type: ignore[no-untyped-call]  # torch's
                if tensor.is_leaf:  # such as a parameter, which is there again in the next output
                    self._leaves[tensor] = handle

    def remove(self) -> None:
        """Remove those that would stay: on leaves."""
        for handle in self._leaves.values():  # type: ignore[no-untyped-call]  # torch's
            handle.remove()
        self._leaves.clear()

    def _reached(self, gradient: Tensor) -> None:
        self._tell()


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors in a module's output, however it is nested."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
    elif is_dataclass(output):
        for field in fields(output):
            yield from _tensors(getattr(output, field.name))
