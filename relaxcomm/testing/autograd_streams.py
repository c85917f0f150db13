"""Streams of a backward: each of its operators runs on that of the forward, whichever is current."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.weak import WeakIdKeyDictionary

from relaxcomm.testing.pretend_cuda import PretendCuda, PretendStream
from relaxcomm.testing.stream_clocks import Clock, join


class AutogradStreams(threading.local):
    """Those of a thread: a node comes after those that it follows, and who calls backward after the last.

    Args:
        cuda: whose streams.
    """

    def __init__(self, cuda: PretendCuda) -> None:
        self._cuda = cuda
        # Numbers of nodes from which on the forward was on a stream; those of old ones are forgotten.
        self._forward: deque[tuple[int, PretendStream]] = deque(maxlen=4096)
        self._leaves = WeakIdKeyDictionary()
        self._depth = 0  # of nodes that run, one within the other

    def note_forward(self, tensors: Sequence[Tensor]) -> None:
        """An operator of a forward runs on the current stream, and so will what autograd has made for it."""
        stream, number = self._cuda.current(), torch._C._autograd._get_sequence_nr() - 1
        begun, last = self._forward[-1] if self._forward else (-1, None)
        if number > begun and stream is not last:
            self._forward.append((number, stream))
        if not self._depth and torch.is_grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad and tensor.is_leaf:
                    self._leaves[tensor] = stream

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Follow each backward."""
        run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]  # torch's own

        def followed(outputs: Sequence[Any], *args: Any, **words: Any) -> Any:
            caller, depth = self._cuda.current(), self._depth
            backward = _Backward(caller, dict(caller.clock))
            with ExitStack() as stack:
                for node in _nodes(outputs):
                    stack.callback(node.register_prehook(self._begins(node, backward)).remove)
                    stack.callback(node.register_hook(self._ends(node, backward)).remove)
                try:
                    return run(outputs, *args, **words)
                finally:  # a node that raises does not end
                    self._depth = depth
                    self._cuda.choose(caller)

        with patch.object(torch.autograd, "_engine_run_backward", followed):
            yield

    def _begins(self, node: Any, backward: _Backward) -> Callable[..., None]:
        def begins(*_: Any) -> None:
            if not backward.is_followed:  # what is queued first comes before what hooks queue
                torch.autograd.Variable._execution_engine.queue_callback(lambda: self._over(backward))
                backward.is_followed = True
            stream = self._stream_of(node, backward.caller)
            join(stream.clock, backward.came.pop(node, backward.begun))
            self._depth += 1
            self._cuda.choose(stream)

        return begins

    def _ends(self, node: Any, backward: _Backward) -> Callable[..., None]:
        def ends(*_: Any) -> None:
            # Then autograd adds to what others gave the same node: on the last one's stream, after them.
            stream = self._cuda.current()
            adds = copy(stream)
            adds.clock = dict(stream.clock)
            for following, _ in node.next_functions:
                if following in backward.came:
                    join(adds.clock, backward.came[following])
                    backward.came[following] = adds.clock
                elif following is not None:
                    backward.came[following] = dict(stream.clock)
            if not node.next_functions:
                join(backward.ended, stream.clock)
            self._depth -= 1
            self._cuda.choose(adds)

        return ends

    def _over(self, backward: _Backward) -> None:
        """As autograd does, before what others have queued for the end."""
        self._cuda.choose(backward.caller)
        for clock in (backward.ended, *backward.came.values()):
            join(backward.caller.clock, clock)

    def _stream_of(self, node: Any, default: Any) -> Any:
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            return self._leaves.get(variable, default)  # type: ignore[no-untyped-call]  # torch's
        number = node._sequence_nr()
        return next((stream for begun, stream in reversed(self._forward) if begun <= number), default)


@dataclass
class _Backward:
    """What is known in one backward."""

    caller: Any
    begun: Clock
    came: dict[Any, Clock] = field(default_factory=dict)
    """What a node's inputs come after."""
    ended: Clock = field(default_factory=dict)
    is_followed: bool = False


def _nodes(outputs: Sequence[Any]) -> list[Any]:
    """All of the graph behind some tensors or edges."""
    found: dict[Any, None] = {}
    left = [output.node if isinstance(output, GradientEdge) else output.grad_fn for output in outputs]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found[node] = None
            left += [following for following, _ in node.next_functions]
    return list(found)
