"""Compressors of what has changed since the last message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.compressors.decode import as_dense
from relaxcomm.primitives.compressors.memory import Memory, inner_state
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.roles.carried import Carried
from relaxcomm.roles.scope import widest
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
        inner = self.compressor.facts
        mean: Carried = "equal" if MAXIMUM in inner.kinds else "mean of shares"  # of some no mean is taken
        return replace(
            inner,
            scope=widest("tensor", inner.scope),  # estimates have the bucket's entries alone
            linear=False,
            memory="lossless",
            follows_results=True,
            keeps_finite=False,
            slots={_ESTIMATE: "share", _MEAN: mean, **self.inner_carried},
        )

    def __post_init__(self) -> None:
        self.check_alone()

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {_ESTIMATE: bucket.zeros(), _MEAN: bucket.zeros(), **self.inner_slots(bucket)}

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        difference = (tensor - state[_ESTIMATE]).to(tensor.dtype)
        coding = self.compressor.encode_decode(cx, difference, inner_state(state, difference), keep_sent=True)
        change, sent = yield from coding
        assert sent is not None
        state[_ESTIMATE] = state[_ESTIMATE] + as_dense(sent, tensor)
        state[_MEAN] = torch.add(state[_MEAN], change)
        return state[_MEAN].clone(), state[_ESTIMATE] if keep_sent else None
