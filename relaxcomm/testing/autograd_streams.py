"""Streams of a backward: each of its operators runs on that of the forward, whichever is current."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from unittest.mock import patch

import torch
from torch import Tensor

from relaxcomm.testing.stream_clocks import Clock, join


class Stream(Protocol):
    """Comes after what its clock says."""

    clock: Clock


class Streams(Protocol):
    """Knows which stream is current."""

    def current(self) -> Any:
        """That of this thread."""

    def choose(self, stream: Any) -> None:
        """From now on it is this thread's."""


class AutogradStreams(threading.local):
    """Those of a thread: a node comes after those that it follows, and who calls backward after the last.

    Args:
        cuda: whose streams.
    """

    def __init__(self, cuda: Streams) -> None:
        self._cuda = cuda
        self._forward: dict[int, Stream] = {}  # by node
        self._came: defaultdict[int, Clock] = defaultdict(dict)  # what a node's inputs come after
        self._ended: Clock = {}
        self._outside: list[Stream] = []  # of nodes that run, one within the other

    def note_forward(self, tensors: Sequence[Tensor]) -> None:
        """An operator of a forward runs on the current stream, and so will what autograd has made for it."""
        if not self._outside and torch.is_grad_enabled():
            stream = self._cuda.current()
            self._forward.setdefault(torch._C._autograd._get_sequence_nr() - 1, stream)
            for tensor in tensors:
                if tensor.requires_grad and tensor.is_leaf:
                    self._forward[id(tensor)] = stream

    def catch_up(self, stream: Stream) -> None:
        """Outside of nodes a stream comes after the last ones of a backward."""
        if self._ended and not self._outside:
            join(stream.clock, self._ended)
            self._ended = {}

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Follow each backward."""
        run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]  # torch's own

        def followed(outputs: Sequence[Tensor], *args: Any, **words: Any) -> Any:
            begun = dict(self._cuda.current().clock)
            with ExitStack() as stack:
                for node in _nodes(outputs):
                    before, after = node.register_prehook(self._begins(node, begun)), self._ends(node)
                    stack.callback(before.remove)
                    stack.callback(node.register_hook(after).remove)
                return run(outputs, *args, **words)

        with patch.object(torch.autograd, "_engine_run_backward", followed):
            yield

    def _begins(self, node: Any, begun: Clock) -> Callable[..., None]:
        def begins(*_: Any) -> None:
            outside = self._cuda.current()
            stream = self._forward.pop(_key(node), outside)
            join(stream.clock, self._came.pop(_key(node), begun))
            self._outside.append(outside)
            self._cuda.choose(stream)

        return begins

    def _ends(self, node: Any) -> Callable[..., None]:
        def ends(*_: Any) -> None:
            clock = self._cuda.current().clock
            self._cuda.choose(self._outside.pop())
            for following, _ in node.next_functions:
                if following is not None:
                    join(self._came[_key(following)], clock)
            if not node.next_functions:
                join(self._ended, clock)

        return ends


def _nodes(outputs: Sequence[Tensor]) -> list[Any]:
    """All of the graph behind some tensors."""
    found: dict[int, Any] = {}
    left = [output.grad_fn for output in outputs]
    while left:
        node = left.pop()
        if node is not None and _key(node) not in found:
            found[_key(node)] = node
            left += [following for following, _ in node.next_functions]
    return list(found.values())


def _key(node: Any) -> int:
    return id(node.variable) if hasattr(node, "variable") else node._sequence_nr()
