"""Tells when a backward has ended, and knows of one that an error has ended."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

from torch.autograd import Variable

from relaxcomm.system.compiler import uncompiled


class EndOfBackward:
    """The end of the outermost backward, which autograd tells only if no error ends it.

    Args:
        tell: called there.
        is_sharded: whether `fully_shard` has such a callback, too, which reduces the last gradients.
    """

    def __init__(self, tell: Callable[[], None], *, is_sharded: bool) -> None:
        self._tell, self._is_sharded = uncompiled(tell), is_sharded
        self._queued: Callable[[], object] = lambda: None
        self._is_awaited = False

    def await_it(self) -> None:
        """Tell of the end of the backward that is under way, once."""
        if self.is_awaited:
            return
        self._is_awaited = True
        queue = Variable._execution_engine.queue_callback
        end = partial(self._tell)  # autograd lets go of it, also where the backward fails
        self._queued = weakref.ref(end)
        queue((lambda: queue(end)) if self._is_sharded else end)

    def forget(self) -> None:
        """Await none: it was told, or does not matter any more."""
        self._is_awaited = False

    @property
    def is_awaited(self) -> bool:
        """Whether a backward is under way that was asked for."""
        return self._is_awaited and self._queued() is not None

    @property
    def has_failed(self) -> bool:
        """Whether an error has ended the backward that was asked for."""
        return self._is_awaited and self._queued() is None
