"""How a tensor is encoded: a compressor talks messages to the exchange."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import partial, wraps
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Count, stated
from relaxcomm.fields.looked_at import Looks, error
from relaxcomm.roles.carried import Slots
from relaxcomm.roles.context import Context, Primitive, State
from relaxcomm.roles.returned import decoded, yielded
from relaxcomm.roles.stage import is_size
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import Message, Sparse

Parts: TypeAlias = Sequence[tuple[float, Message]]
"""Weighted messages; the combined result is the weighted sum of what they decode to, or `Maximum.of` them.
An all-reduce gives one part of weight 1, an all-gather one part a worker."""

Coding: TypeAlias = Generator[Message, Parts, tuple[Tensor, Tensor | Sparse | None]]
"""Yields a message, is sent the parts that came back, returns `(result, sent)`."""

Scope: TypeAlias = Literal["entry", "tensor", "bucket", "model"]
"""How much is looked at to encode an entry, from the least to the most."""

Memory: TypeAlias = Literal["none", "leaky", "lossless"]
"""What becomes of what a message leaves out: it is gone, a part of it is sent later, or all of it."""


@stated
class CompressorFacts:
    """What a compressor declares.

    Args:
        kinds: message kinds that it may yield.
        rounds: number of messages a tensor.
        scope: what it looks at to encode an entry: the "entry" alone, with a number drawn for its place if
            any, so that others can travel behind those of a bucket; its "tensor" (see `Context.layout`), its
            "bucket", or the whole "model", which then lies in one bucket for each dtype and set of rules.
        linear: `C(a + b) = C(a) + C(b)` in the same step, to rounding.
        unbiased: the expectation of `C(x)` is x, to the rounding of a floating-point type, if no entry is
            beyond `clip rms(x)` and its norm is at most `max_norm`.
        clip: from how many times the root mean square on entries are cut on purpose; infinity for none.
        max_norm: from which norm on a tensor is scaled down on purpose; infinity for none.
        memory: whether what a message leaves out is in later ones: "none", "leaky", or "lossless".
        follows_results: what it sends or decodes depends on earlier results, the same for all ranks then.
        follows_clock: how a message is to be read depends on the step in which it was made.
        keeps_finite: a message of finite entries is finite, so that ranks may look at it on its way.
        slots: what it keeps, and what becomes of each slot with another number of ranks, see `Carried`.
        most_entries: of what is coded at once, a bucket or a rank's part of it; infinity for any number. A
            `Sparse` message has places for `MOST_PLACES`.

    Example:
        >>> from relaxcomm.primitives import cast, chain, error_feedback, top_k
        >>> short = chain(compressors=(top_k(density=0.01), cast(dtype="float16")))
        >>> [(one.facts.scope, one.facts.unbiased, one.facts.memory) for one in (cast("float16"), short)]
        [('entry', True, 'none'), ('model', False, 'none')]
        >>> error_feedback(compressor=short, decay=0.9).facts.memory
        'leaky'
    """

    kinds: frozenset[str]
    rounds: Count
    scope: Scope
    linear: bool
    unbiased: bool
    clip: float
    max_norm: float
    memory: Memory
    follows_results: bool
    follows_clock: bool
    keeps_finite: bool
    slots: Slots
    most_entries: int | float


def _bytes(value: Any, method: str, compressor: object, *_: object, **__: object) -> int:
    """What `message_bytes` and `layout_bytes` return."""
    if is_size(value) and value == int(value):
        return int(value)
    raise error(value, "return a whole number of bytes, 0 or more", method, compressor)


def _phases(value: object, method: str, compressor: object) -> object:
    """What `phases` is."""
    if isinstance(value, tuple) and all(isinstance(one, tuple) and len(one) == 2 for one in value):
        starts = [start for start, coder in value if isinstance(coder, Compressor) and is_size(start)]
        if starts[:1] == [0] and len(starts) == len(value) and starts == sorted(set(starts)):
            return value
    wanted = "let it be ((0, compressor), (step, compressor), …), from which step on it codes with each"
    raise error(value, wanted, f"{method} is", compressor)


class Compressor(Primitive):
    """How a tensor is encoded.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.plugin import Compressor, Dense, frozen
        >>> from relaxcomm.primitives import identity
        >>> @frozen
        ... class clipped(Compressor):
        ...     bound: float
        ...     facts = replace(identity.facts, linear=False, unbiased=False)
        ...     def encode_decode(self, cx, tensor, state, *, keep_sent):
        ...         message = Dense(tensor.clamp(-self.bound, self.bound))
        ...         sent = message.tensor.clone()
        ...         parts = yield message
        ...         return sum(weight * part.tensor for weight, part in parts), sent
        ...     def message_bytes(self, numel, element_bytes):
        ...         return numel * element_bytes
        >>> round_trip(clipped(bound=1.0), [torch.tensor([0.5, 3.0])])
        [tensor([0.5000, 1.0000])]
    """

    role: ClassVar[str] = "compressor"
    declares: ClassVar[type[CompressorFacts]] = CompressorFacts
    looks: ClassVar[Looks] = {
        **Primitive.looks,
        "message_bytes": _bytes,
        "layout_bytes": _bytes,
        "phases": _phases,
    }

    takes_complex: ClassVar[bool] = False
    """Whether complex entries come out right: it neither compares nor squares nor shortens them."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        owner = next(one for one in cls.__mro__ if "encode_decode" in vars(one))
        if owner is cls or not issubclass(owner, Compressor):  # a mixin, say
            cls.encode_decode = _looked_at(cls.encode_decode)  # type: ignore[method-assign]

    @property
    @abstractmethod
    def facts(self) -> CompressorFacts:
        """What it declares."""

    @property
    def without_memory(self) -> Compressor:
        """This compressor without a memory of what it has left out."""
        return self

    def contraction(self, numel: int) -> float | None:
        """A bound on `E ||C(x) - x||^2 / ||x||^2` for `numel` entries, or None if there is none."""
        return None

    @abstractmethod
    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        """Encode `tensor` (`[numel]`), yield messages, decode what comes back.

        Returns the decoded result and, if `keep_sent`, what this worker's own messages decode to, as a
        tensor or, where that is less work for whoever subtracts it, as a sparse message.
        """

    def makes_sum(self, tensor: Tensor) -> bool:
        """Whether `encode_decode` writes the sum of `cx.terms`, if there are any, to `tensor`.

        In the pass in which it looks at the entries this costs less than a pass of its own.
        """
        return False

    def makes_difference(self, tensor: Tensor) -> bool:
        """Whether `encode_decode` encodes `cx.difference`, if there is one, and does not read `tensor`."""
        return False

    @property
    def phases(self) -> tuple[tuple[int, Compressor], ...]:
        """What it codes with from which step of the rule on, where that changes once for all."""
        return ((0, self),)

    def values(self, numel: int, element_bytes: int) -> tuple[int, int] | None:
        """How many values a message of `numel` entries holds, and bytes of each; None if none can be encoded
        further, and then it can only be the last of a chain."""
        return None

    def layout_values(self, layout: Layout, element_bytes: int) -> tuple[int, int] | None:
        """The same for tensors that lie one behind the other and that may be coded apart."""
        return self.values(layout.numel, element_bytes)

    @abstractmethod
    def message_bytes(self, numel: int, element_bytes: int) -> int:
        """Bytes of all messages for a tensor of `numel` entries of `element_bytes` each."""

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        """The same for tensors that lie one behind the other and that may be coded apart."""
        return self.message_bytes(layout.numel, element_bytes)


def widest(*scopes: Scope) -> Scope:
    """The scope of compressors together.

    Example:
        >>> widest("entry", "model", "tensor")
        'model'
    """
    return max(scopes, key=get_args(Scope).index)


def _looked_at(encode_decode: Callable[..., object]) -> Callable[..., Coding]:
    """The same, but what it yields and returns is looked at, whichever exchange asks for it.

    Where a subclass drives it, which may make other messages of what it yields, that one is looked at alone.
    """

    @wraps(encode_decode)
    def coding(self: Compressor, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        numel, running = tensor.numel(), encode_decode(self, cx, tensor, state, keep_sent=keep_sent)
        if not isinstance(running, Generator):
            wanted = "yield a message, be sent what came back, and return the pair (result, sent)"
            raise error(running, wanted, "encode_decode", self)
        if type(self).encode_decode is not coding:
            whole: tuple[Tensor, Tensor | Sparse | None] = yield from running
            return whole
        facts, parts = self.facts, None
        looks_at_entries = facts.scope == "entry"  # of which no products are made, and a step may be short
        resume = running.send if looks_at_entries else partial(_resume, running, tensor.device.type)
        try:
            while True:
                parts = yield yielded(resume(parts), facts.kinds, self)  # type: ignore[arg-type]  # None at first
        except StopIteration as stop:
            return decoded(stop.value, numel, self, keep_sent=keep_sent)

    return coding


def _resume(running: Coding, device_type: str, parts: Parts) -> Message:
    """Go on outside of the training loop's autocast, in which products would lose most of their digits."""
    if not torch.is_autocast_enabled(device_type):
        return running.send(parts)
    with torch.autocast(device_type, enabled=False):
        return running.send(parts)
