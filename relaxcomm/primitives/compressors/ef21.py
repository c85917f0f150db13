"""Compressors of what has changed since the last message."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.compressors.decode import as_dense
from relaxcomm.primitives.compressors.memory import Memory, inner_slots, inner_state
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.messages import MAXIMUM

_ESTIMATE, _MEAN = "estimate", "mean_estimate"


@frozen
class ef21(Memory):
    """Send how far x is from an estimate of it, and follow the estimates' mean: `g_n <- g_n + C(x_n - g_n)`.

    All hold the mean of the estimates, `g <- g + (1/N) sum_n C(x_n - g_n)`, and g is the result, both from
    0 on. With a contractive C, estimates reach x where x comes to rest. It needs every worker's message, so
    it takes `all_reduce` or `all_gather`.

    Args:
        compressor: C.

    Raises: CompositionError around a compressor that keeps a residual itself.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import ef21, top_k
        >>> x = torch.zeros(100).index_fill(0, torch.tensor([3, 7]), 5.0)
        >>> compressor = ef21(compressor=top_k(density=0.01))
        >>> [arrived.nonzero().flatten().tolist() for arrived in round_trip(compressor, [x, x])]
        [[3], [3, 7]]

    Reference: Richtárik et al., "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
        Feedback", NeurIPS 2021.

    Differs from the paper: estimates begin at 0 rather than at the first gradients, sent in full.
    """

    compressor: Compressor

    @cached_property
    def facts(self) -> CompressorFacts:
        has_mean = MAXIMUM not in self.compressor.facts.kinds
        return self.facts_around(
            {_ESTIMATE: "share", _MEAN: "mean of shares" if has_mean else "equal"},
            memory="lossless",
            follows_results=True,
        )

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {_ESTIMATE: bucket.zeros(), _MEAN: bucket.zeros(), **inner_slots(self.compressor, bucket)}

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        difference = (tensor - state[_ESTIMATE]).to(tensor.dtype)
        coding = self.compressor.encode_decode(cx, difference, inner_state(state, difference), keep_sent=True)
        change, sent = yield from coding
        assert sent is not None
        state[_ESTIMATE] = state[_ESTIMATE] + as_dense(sent, tensor)
        state[_MEAN] = torch.add(state[_MEAN], change)
        mean = state[_MEAN]  # which a payload may write into
        result = buffer_pool.out_or_empty(mean, mean.dtype, cx.out).copy_(mean)
        return result, state[_ESTIMATE] if keep_sent else None
