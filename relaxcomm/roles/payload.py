"""What a rule exchanges."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from relaxcomm.fields.frozen import stated
from relaxcomm.roles.carried import Slots
from relaxcomm.roles.context import Context, Primitive, State
from relaxcomm.roles.returned import entries
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.differences import Difference
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.shards import shard_bucket


@stated
class PayloadFacts:
    """What a payload declares.

    Args:
        site: where it is read: "backward", as gradients become ready, or "step", after the optimizer.
        is_model: it is the parameters themselves.
        is_momentum: it goes on from its last result, or from earlier gradients, so that zero gradients leave
            something of it.
        has_base: it keeps a point from which an outer optimizer moves.
        is_move: it tells how far to go and nothing of where one is. Moves alone never bring bases together
            that differ, so the base must be the same on all ranks, and each must get the same result.
        moves_model: its result is written to the parameters; the model's buffers are then averaged with it.
        keeps_local: a part of the local parameters stays in what is written.
        extra_entries: number of entries behind those of the bucket, such as a weight.
        wide: it is read in float32 at least, whatever the type of the parameters.
        event: the event that its trigger must wait for, or None.
        hears: the events of which it takes note.
        slots: what it keeps, and what becomes of each slot with another number of ranks, see `Carried`.

    Example:
        >>> from relaxcomm.primitives import client_deltas, deltas, parameters
        >>> [(one.facts.is_move, one.facts.event) for one in (deltas(), client_deltas(), parameters())]
        [(True, None), (True, 'round'), (False, None)]
    """

    site: Literal["backward", "step"]
    is_model: bool
    is_momentum: bool
    has_base: bool
    is_move: bool
    moves_model: bool
    keeps_local: bool
    extra_entries: int
    wide: bool
    event: str | None
    hears: frozenset[str]
    slots: Slots


class Payload(Primitive):
    """What a rule exchanges.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.plugin import Payload, frozen
        >>> from relaxcomm.primitives import all_reduce, gradients
        >>> @frozen
        ... class gradient_signs(Payload):
        ...     facts = gradients.facts
        ...     def read(self, cx, bucket, state, out):
        ...         return out.sign_()
        ...     def write(self, cx, bucket, state, value, snapshot):
        ...         if cx.gradient_scale is not None:
        ...             value.mul_(cx.gradient_scale)  # value becomes `.grad`, which is unscaled later
        >>> trajectory(Rule(payload=gradient_signs(), exchange=all_reduce()), [[1.0, 5.0], [1.0, -5.0]])
        tensor([[1., 1.],
                [1., 1.]])
    """

    role: ClassVar[str] = "payload"
    declares: ClassVar[type[PayloadFacts]] = PayloadFacts

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        newest = next(vars(one) for one in cls.__mro__ if {"read", "difference"} & vars(one).keys())
        if "difference" not in newest:  # that of a base would take the place of this read
            cls.difference = Payload.difference  # type: ignore[method-assign]

    @property
    @abstractmethod
    def facts(self) -> PayloadFacts:
        """What it declares."""

    @property
    def words(self) -> str:
        """What errors say before the name of a tensor, such as "the optimizer's exp_avg of"."""
        return ""

    @property
    def passes_gradients(self) -> bool:
        """Whether it makes nothing of gradients, so that their mean may be taken where they are copied."""
        return False

    @property
    def measures(self) -> bool:
        """Whether it has a `measure` of its own, to look at all that its rule covers before it reads any."""
        return type(self).measure is not Payload.measure

    def for_buffers(self) -> Payload | None:
        """What averages the model's buffers beside it, by slots that this has; None for their mean."""
        return None

    def measure(self, cx: Context, bucket: Bucket, state: State) -> Tensor:
        """A few numbers of a bucket, `[k]`; `read` finds their sum in `cx.measured`, of this worker alone.

        Asked at "step" about all buckets of a rule before any is read; added up over a replica's shards.
        """
        raise NotImplementedError(f"{self!r} has no measure()")

    @abstractmethod
    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        """Fill `out` (`[numel]`) with what is to be exchanged and return it.

        At "step" it may move the parameters first, by what an earlier result has left in a slot.
        """

    def difference(self, cx: Context, bucket: Bucket, state: State) -> Difference | None:
        """What `read` would write where that is a difference alone, for a compressor that makes it in the
        pass in which it looks at the entries; else None, as of a class with a `read` of its own."""
        return None

    def base(self, cx: Context, bucket: Bucket, state: State) -> Tensor | None:
        """The point from which an outer optimizer moves, or None."""
        return None

    def finalize(self, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
        """Make a combined result, which may have entries more than the bucket, into the payload's."""
        return result

    def before_step(self, cx: Context, bucket: Bucket, state: State) -> None:
        """Change `.grad` just before the optimizer's step, by what `cx.gradient_scale` multiplies."""

    def event(
        self, cx: Context, bucket: Bucket, state: State, event: str, facts: Mapping[str, float]
    ) -> None:
        """Take note of something that the engine was told of."""

    @abstractmethod
    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        """Apply `value`.

        If the result comes late, `snapshot` is what the parameters were at `read`; it may be overwritten.
        """


def read(payload: Payload, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
    """What `read` returns; of a gradient it lies in `out`, where that is looked for.

    Raises: PluginError unless that is as `entries` wants it.
    """
    facts = payload.facts
    value = payload.read(cx, bucket, state, out)
    value = entries(value, bucket.numel + facts.extra_entries, "read", payload)
    return value if value is out or facts.site == "step" else out.copy_(value)


def read_as(payload: Payload, dtype: torch.dtype) -> torch.dtype:
    """In which type it is read of parameters of this one."""
    return wide(dtype) if payload.facts.wide else dtype


def as_read(payload: Payload, bucket: Bucket) -> Bucket:
    """A bucket in the type in which it is read, for what codes it: without memory if that is another one."""
    dtype = read_as(payload, bucket.dtype)
    return bucket if dtype == bucket.dtype else shard_bucket(bucket, bucket.layout, dtype)


def finalized(payload: Payload, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
    """What `finalize` returns.

    Raises: PluginError unless that is as `entries` wants it.
    """
    return entries(payload.finalize(cx, bucket, state, result), bucket.numel, "finalize", payload)
