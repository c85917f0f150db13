"""Gradients in tensors of the training loop's own, such as views of one flat buffer."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import compress
from operator import attrgetter

import torch
from torch import Tensor, UntypedStorage

from relaxcomm.tensors.items import Item

_version = attrgetter("_version")


def memory_holders(tensor: Tensor) -> int | None:
    """How many tensors have its memory, and what looks at it; None where torch cannot tell."""
    # No public name says it; builds without CUDA lack this one in torch 2.8.
    count = getattr(torch._C, "_storage_Use_Count", None)
    storage = tensor.untyped_storage()
    return None if count is None else count(storage._cdata)


def has_own_memory(tensor: Tensor) -> bool:
    """Whether no other tensor has it; torch may be unable to tell, which counts as no."""
    holders = memory_holders(tensor)
    return holders is not None and holders == memory_holders(torch.empty(1))


def zero_or_none(item: Item) -> None:
    """Make `.grad` None, but zeros where it is the user's own, who would look at it in vain later."""
    parameter = item.parameter
    if item.sharded is None and parameter.grad is not None and _is_held(parameter):
        parameter.grad.zero_()
    else:
        parameter.grad = None


class HiddenGradients:
    """Has no gradient where an optimizer is to do nothing, alike on ranks whose loops hold some or none."""

    def __init__(self, parameters: Sequence[Item]) -> None:
        self._parameters = [item.parameter for item in parameters]
        self._hidden: dict[int, Tensor] = {}

    def hide(self) -> None:
        """Make `.grad` None where it is a tensor of the user's."""
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                self._hidden.setdefault(index, parameter.grad)
                parameter.grad = None

    def put_back(self) -> None:
        """Make them `.grad` again, once the optimizers have stepped."""
        for index, tensor in self._hidden.items():
            self._parameters[index].grad = tensor
        self._hidden.clear()


class UserGradients:
    """Has results of a backward end in tensors of the user's, where the next backward adds to them."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._taken: dict[int, Tensor] = {}

    def take(self, fresh: Mapping[int, Tensor], before: Collection[int] = ()) -> None:
        """Find the user's own among gradients in whose place others are about to come.

        Autograd has added to these, and somebody else has them, too. Those that it has made are told apart
        by that, with no look at `.grad` before backward: what `no_sync` leaves there nobody else has.

        Args:
            fresh: gradients by the parameters' places; the caller holds each once more.
            before: places of those that were there before this backward, which has added nothing.
        """
        for index in {*before, *compress(fresh, map(_version, fresh.values()))}:
            if _is_held(self._parameters[index], references=2):
                self._taken[index] = fresh[index]

    def give_back(self) -> None:
        """Copy what has come in their place, zeros for none, and make them `.grad` again."""
        for index, tensor in self._taken.items():
            parameter = self._parameters[index]
            if parameter.grad is None:
                tensor.zero_()
            else:
                tensor.copy_(parameter.grad)
            parameter.grad = tensor
        self._taken = {}


def _is_held(parameter: Tensor, references: int = 0) -> bool:
    """Whether somebody has a parameter's gradient, or looks at its memory, beside who calls this.

    Args:
        references: how many Python objects of the caller's hold it.
    """
    assert parameter.grad is not None, "it is there"
    count = sys.getrefcount(parameter.grad)
    is_alone = count <= references + _references_alone() and has_own_memory(parameter.grad)
    return not is_alone or _is_of_others(parameter.grad.untyped_storage())


def _is_of_others(memory: UntypedStorage) -> bool:
    """Whether it is NumPy's, a file's or other processes', who look at it without a tensor here."""
    return not memory.resizable() or (memory.device.type == "cpu" and memory.is_shared())


@cache
def _references_alone() -> int:
    """What Python counts where nothing but a parameter has its gradient."""
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    return sys.getrefcount(parameter.grad)
