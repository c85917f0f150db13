"""How a tensor is encoded: a compressor talks messages to the exchange."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import ClassVar, TypeAlias

from torch import Tensor

from relaxcomm.roles.context import Context, Primitive, State
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import Message, Sparse

Parts: TypeAlias = Sequence[tuple[float, Message]]
"""Weighted messages; the combined result is the weighted sum of what they decode to, or `Maximum.of` them.
An all-reduce gives one part of weight 1, an all-gather one part a worker."""

Coding: TypeAlias = Generator[Message, Parts, tuple[Tensor, Tensor | Sparse | None]]
"""Yields a message, is sent the parts that came back, returns `(result, own)`."""


class Compressor(Primitive):
    """How a tensor is encoded.

    Facts, declared here and held against observation by the contract tests:
        kinds: message kinds that it may yield.
        rounds: messages a tensor.
        linear: `code(a + b) = code(a) + code(b)`, to rounding, and no state is kept.
        elementwise: entries are coded one by one, so that an entry more changes no other.
        unbiased: the expectation of `C(x)` is `x`.
        meant_bias: what it loses for good is meant to be lost, such as what a clip cuts off.
        keeps_rest: what a message leaves out is kept and sent later.
        builds_on_results: a result is added to earlier ones, so each rank needs every worker's message.
        keeps_finite: a message of finite entries is finite, so that ranks can agree on whether all is
            well while it is on its way.
        follows_clock: how a message is to be read depends on the step in which it was made.
    """

    role: ClassVar[str] = "compressor"
    kinds: ClassVar[frozenset[str]]
    rounds: ClassVar[int] = 1
    linear: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True
    meant_bias: ClassVar[bool] = False
    keeps_rest: ClassVar[bool] = False
    builds_on_results: ClassVar[bool] = False
    keeps_finite: ClassVar[bool] = False
    follows_clock: ClassVar[bool] = False

    @property
    def coding_scope(self) -> str:
        """What it looks at when it codes an entry: its "tensor", its "bucket", or the whole "model".

        The model then lies in one bucket for each dtype; tensors are told apart by `Context.layout`. So the
        bucket size does not change what the compressor means.
        """
        return "bucket"

    @property
    def plain(self) -> Compressor:
        """The same coder without a memory of what it has left out."""
        return self

    def contraction(self, numel: int) -> float | None:
        """A bound on `E ||C(x) - x||^2 / ||x||^2` for `numel` entries, or None if there is none."""
        return None

    @abstractmethod
    def code(self, cx: Context, tensor: Tensor, state: State, *, keep_own: bool) -> Coding:
        """Encode `tensor` (`[numel]`), yield messages, decode what comes back.

        Returns the decoded result and, if `keep_own`, what this worker's own messages decode to, as a
        tensor or, where that is less work for whoever subtracts it, as a sparse message.
        """

    @property
    def phases(self) -> tuple[tuple[int, Compressor], ...]:
        """What it codes with from which step of the rule on, where that changes once for all."""
        return ((0, self),)

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        """How many values, which may be coded further, a message of `numel` entries holds; bytes of each."""
        return numel, element_bytes

    def layout_values(self, layout: Layout, element_bytes: int) -> tuple[int, int]:
        """The same for tensors that lie one behind the other and that may be coded apart."""
        return self.values(layout.numel, element_bytes)

    @abstractmethod
    def message_bytes(self, numel: int, element_bytes: int) -> int:
        """Bytes of all messages for a tensor of `numel` entries of `element_bytes` each."""

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        """The same for tensors that lie one behind the other and that may be coded apart."""
        return self.message_bytes(layout.numel, element_bytes)
