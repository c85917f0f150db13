"""Hooks on gradients: a few are told of when they arrive, and the others with them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from relaxcomm.system.compiler import uncompiled
from relaxcomm.system.weak_methods import weakly
from relaxcomm.tensors.items import Item


class GradientHooks:
    """Tells of gradients one by one, or collects them in C up to those that somebody waits for.

    A hook in Python takes half a microsecond or more, and there may be hundreds in a backward. A gradient is
    told of when all of the user's hooks on it have run, which may change it.

    Args:
        parameters: whose gradients.
        tell: called with the parameters' indices, in the order in which their gradients have arrived; with
            none where a backward's first gradient is there, but the user's hooks have yet to run.
    """

    def __init__(self, parameters: Sequence[Item], tell: Callable[[list[int]], None]) -> None:
        self._parameters = [item.parameter for item in parameters]
        self._indices = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        self._tell = tell
        self._arrived: list[Tensor] = []
        self._collects = self._arrived.append
        self._tells = uncompiled(weakly(self._arrives))
        self._each = partial(self._tells)  # what all parameters call; redirected between the two above
        self._is_collecting = False
        self._handles = [hang(parameter, self._each) for parameter in self._parameters]
        # Parameters that a failed backward has left in the list would hold it, through their hooks.
        self._remove = weakref.finalize(self, _remove, self._handles)
        # One is always awaited, and tells of a backward that comes after one that has failed.
        self.await_also(range(len(self._parameters))[:1])

    def collect(self) -> None:
        """Tell only of gradients that are awaited from now on, with all that arrived before them."""
        if not self._is_collecting:
            self._redirect(self._collects)
            self._is_collecting = True

    def tell_each(self) -> list[int]:
        """Tell of each gradient from now on; returns those that were collected and not told of yet."""
        if self._is_collecting:
            self._redirect(self._tells)
            self._is_collecting = False
        return self._take() if self._arrived else []

    def await_also(self, indices: Collection[int]) -> None:
        """Tell of these as soon as they are there, also while gradients are collected."""
        for index in indices:
            if _last_hook(self._parameters[index]) is not self._tells:  # collects, or is behind no more
                self._handles[index].remove()
                self._handles[index] = hang(self._parameters[index], self._tells)

    def remove(self) -> None:
        """Remove all."""
        self._remove()

    def _redirect(self, target: Callable[[Tensor], None]) -> None:
        # The only thing that Python calls without a frame of its own and that can be made to call another.
        self._each.__setstate__((target, (), {}, None))  # type: ignore[attr-defined]  # typeshed lacks it

    def _take(self) -> list[int]:
        # A hook of the user's that returns something has torch hand us that, and raise an error behind us.
        ours = filter(self._indices.__contains__, map(id, self._arrived))
        indices = list(map(self._indices.__getitem__, ours))
        self._arrived.clear()
        return indices

    def _arrives(self, parameter: Tensor) -> None:
        last = _last_hook(parameter)
        if last is self._tells or last is self._each:
            self._arrived.append(parameter)
            self._tell(self._take())
        else:  # one of the user's is next, and may change the gradient: it is told of with the one behind it
            self._tell(self._take())
            self._arrived.append(parameter)


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _last_hook(parameter: Tensor) -> object:
    """What torch calls last when a parameter has its gradient: in the order in which they were hung."""
    return next(reversed((parameter._post_accumulate_grad_hooks or {}).values()), None)


def hang(parameter: Tensor, hook: Callable[[Tensor], object]) -> RemovableHandle:
    """Have a parameter call `hook` when it has its gradient, also one that is frozen until later."""
    is_trained = parameter.requires_grad
    parameter.requires_grad_()  # torch lets a frozen one have no new hook, and leaves it those that it has
    # torch leaves this method without types
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(is_trained)
    return handle
