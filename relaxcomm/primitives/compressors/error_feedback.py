"""Compressors around compressors that keep what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.errors import CompositionError
from relaxcomm.fields.frozen import Fraction, Share, frozen
from relaxcomm.primitives.outers.own_momentum import refuse_momentum
from relaxcomm.roles import Coding, Compressor, Context, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import Sparse
from relaxcomm.tensors.shards import PieceState

_RESIDUAL, _VELOCITY, _SPARE, _ROUNDED = "residual", "velocity", "_spare", "_rounded"
_INNER = 0


def subtract(tensor: Tensor, own: Tensor | Sparse) -> Tensor:
    """Take what a message decodes to out of a tensor, in place."""
    if isinstance(own, Tensor):
        return tensor.sub_(own)
    own.add_to(tensor, -1.0)
    return tensor


def inner_state(state: State) -> State:
    """The slots of the inner compressor among those of the outer one."""
    return PieceState(state, _INNER)


class Around(Compressor):
    """A compressor around one other: facts and slots of the inner one."""

    compressor: Compressor

    keeps_rest: ClassVar[bool] = True

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]  # facts that are the inner one's
        return self.compressor.kinds

    @property
    def rounds(self) -> int:  # type: ignore[override]
        return self.compressor.rounds

    @property
    def plain(self) -> Compressor:
        return self.compressor.plain

    @property
    def builds_on_results(self) -> bool:  # type: ignore[override]
        return self.compressor.builds_on_results

    @property
    def follows_clock(self) -> bool:  # type: ignore[override]
        return self.compressor.follows_clock

    @property
    def coding_scope(self) -> str:
        return self.compressor.coding_scope

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.compressor.message_bytes(numel, element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        return self.compressor.layout_bytes(layout, element_bytes)

    def inner_slots(self, bucket: Bucket) -> dict[str, Tensor]:
        """The inner compressor's slots, to stand beside one's own."""
        slots: dict[str, Tensor] = {}
        PieceState(slots, _INNER).update(self.compressor.init(bucket))
        return slots

    def check_alone(self) -> None:
        """Refuse an inner compressor that keeps a residual."""
        if self.compressor.keeps_rest:
            raise CompositionError(
                f"{type(self).__name__} around {self.compressor!r} would keep entries twice; use one of them"
            )


@frozen
class error_feedback(Around):
    """Add what earlier messages left out: `u = x + decay e`, send `C(u)`, `e <- u - C(u)`.

    With decay 1 nothing is ever lost: all that was sent plus the residual e is all that came in. The residual
    is at least float32: where tensors are shorter, so are messages, and what they round off stays in it too.

    Args:
        compressor: C.
        decay: of the residual, in (0, 1].

    Raises: CompositionError around a compressor that keeps a residual itself.

    Example:
        >>> error_feedback(compressor=top_k(density=0.01))
        error_feedback(compressor=top_k(density=0.01))

    Reference: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
        Schemes", ICML 2019.
    """

    compressor: Compressor
    decay: Share = 1.0

    def __post_init__(self) -> None:
        self.check_alone()

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        residual, rounded = bucket.zeros(), bucket.empty()
        own = {_RESIDUAL: residual, _SPARE: torch.empty_like(residual)}
        own |= {_ROUNDED: rounded} if rounded.dtype != residual.dtype else {}
        return {**own, **self.inner_slots(bucket)}

    def code(self, cx: Context, tensor: Tensor, state: State, *, keep_own: bool) -> Coding:
        # Two buffers that change places: a new one each time would cost more than the arithmetic.
        corrected = torch.add(tensor, state[_RESIDUAL], alpha=self.decay, out=state[_SPARE])
        sendable = state[_ROUNDED].copy_(corrected) if _ROUNDED in state else corrected
        coding = self.compressor.code(cx, sendable, inner_state(state), keep_own=True)
        result, own = yield from coding
        assert own is not None
        state[_SPARE] = state[_RESIDUAL]
        state[_RESIDUAL] = subtract(corrected, own)
        return result, own


@frozen
class momentum_correction(Around):
    """Send momentum rather than gradients, and forget it where it was sent.

    `u <- momentum u + x`, `v <- v + u`, send `C(v)`, `v <- v - C(v)`; where C(v) is not 0, `u <- 0`. It
    stands in the place of error feedback and of the optimizer's momentum, which must be 0. Both u and v are
    at least float32, whatever the tensors are.

    Args:
        compressor: C, a sparsifier.
        momentum: in [0, 1).

    Raises: CompositionError around a compressor that keeps a residual itself.

    Example:
        >>> momentum_correction(compressor=top_k(density=0.01))
        momentum_correction(compressor=top_k(density=0.01))

    Reference: Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for
        Distributed Training", ICLR 2018.

    Differs from the paper: what C rounds off of the entries that it sends stays in v.
    """

    compressor: Compressor
    momentum: Fraction = 0.9

    def __post_init__(self) -> None:
        self.check_alone()

    def check_optimizer(self, groups: list[dict[str, object]]) -> None:
        refuse_momentum(self, groups)

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {_RESIDUAL: bucket.zeros(), _VELOCITY: bucket.zeros(), **self.inner_slots(bucket)}

    def code(self, cx: Context, tensor: Tensor, state: State, *, keep_own: bool) -> Coding:
        velocity = torch.add(tensor, state[_VELOCITY], alpha=self.momentum)
        gathered = state[_RESIDUAL] + velocity
        coding = self.compressor.code(cx, gathered.to(tensor.dtype), inner_state(state), keep_own=True)
        result, own = yield from coding
        assert own is not None
        if isinstance(own, Sparse):
            velocity[own.places()[: int(own.count)].long()] = 0
        else:
            velocity.mul_(own == 0)
        state[_VELOCITY], state[_RESIDUAL] = velocity, subtract(gathered, own)
        return result, own
