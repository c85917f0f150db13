"""Error feedback: what a message leaves out is added to the next one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Share, frozen
from relaxcomm.primitives.compressors.fused_feedback import FusedFeedback
from relaxcomm.primitives.compressors.memory import Memory, inner_slots, inner_state, subtract
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.messages import Sparse
from relaxcomm.tensors.precision import wide

_RESIDUAL, _SENT_AS = "residual", "_sent_as"


@frozen
class error_feedback(Memory):
    """Add what earlier messages left out: `u = x + decay e`, send `C(u)`, `e <- u - C(u)`.

    With decay 1 nothing is ever lost: all that was sent plus the residual e is all that came in. The residual
    is at least float32: where tensors are shorter, so are messages, and what they round off stays in it too.
    What an exchange rounds as it adds 16-bit messages up, as `all_reduce` does, is in nobody's residual.
    C has to lose less than it is given: around one whose error may be larger than x, such as a scaled
    `random_k`, e grows without bound.

    Args:
        compressor: C.
        decay: of the residual, in (0, 1].

    Raises: CompositionError around a compressor that keeps a residual itself.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import error_feedback, top_k
        >>> x = torch.zeros(100).index_fill(0, torch.tensor([3, 7]), 5.0)
        >>> compressor = error_feedback(compressor=top_k(density=0.01))
        >>> [arrived.nonzero().flatten().tolist() for arrived in round_trip(compressor, [x, 0 * x, 0 * x])]
        [[3], [7], []]

    Reference: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
        Schemes", ICML 2019.
    """

    compressor: Compressor
    decay: Share = 1.0

    @cached_property
    def facts(self) -> CompressorFacts:
        return self.facts_around({_RESIDUAL: "share"}, memory="lossless" if self.decay == 1 else "leaky")

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        sent_as = torch.empty(0, dtype=bucket.dtype, device=bucket.device)  # says of which type messages are
        return {_RESIDUAL: bucket.zeros(), _SENT_AS: sent_as, **inner_slots(self.compressor, bucket)}

    def makes_difference(self, tensor: Tensor) -> bool:
        if isinstance(self.compressor, FusedFeedback):
            return self.compressor.takes_feedback(tensor) and self.compressor.makes_difference(tensor)
        return self._lets_sum(tensor)

    def _lets_sum(self, tensor: Tensor) -> bool:
        """Whether the compressor adds the residual, in the pass in which it looks at the entries."""
        is_plain = self.decay == 1 and tensor.dtype == wide(tensor.dtype)
        return is_plain and self.compressor.makes_sum(tensor)

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        # A mean that is longer than what messages hold has to be rounded first.
        is_rounded = state[_SENT_AS].dtype != tensor.dtype
        fused = self.compressor
        if isinstance(fused, FusedFeedback) and not is_rounded and fused.takes_feedback(tensor):
            return (yield from self._at_once(fused, cx, tensor, state, keep_sent))
        corrected = buffer_pool.empty_like(state[_RESIDUAL])
        if self._lets_sum(tensor):
            what = tensor if cx.difference is None else cx.difference
            cx = cx.at(terms=(what, state[_RESIDUAL]), difference=None)
        else:
            torch.add(tensor, state[_RESIDUAL], alpha=self.decay, out=corrected)
        sendable = corrected.to(state[_SENT_AS].dtype)
        coding = self.compressor.encode_decode(cx, sendable, inner_state(state, sendable), keep_sent=True)
        result, sent = yield from coding
        assert sent is not None
        state[_RESIDUAL] = subtract(corrected, sent)
        return result, sent

    def _at_once(
        self, compressor: FusedFeedback, cx: Context, tensor: Tensor, state: State, keep_sent: bool
    ) -> Coding:
        """Encode and decode where the correction is a by-product of encoding."""
        left = buffer_pool.empty_like(state[_RESIDUAL])
        message = compressor.message_with_feedback(cx, tensor, state[_RESIDUAL], self.decay, out=left)
        sent: Tensor | Sparse | None = message if isinstance(message, Sparse) else None
        if keep_sent and sent is None:
            sent = compressor.decoded([(1.0, message)], tensor)
        parts = yield message
        state[_RESIDUAL] = left
        return compressor.decoded(parts, tensor, cx.out), sent
