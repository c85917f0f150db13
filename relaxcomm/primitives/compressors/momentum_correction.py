"""Momentum that waits for its entries to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Fraction, frozen
from relaxcomm.primitives.compressors.memory import Memory, inner_slots, inner_state, subtract
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.roles.carried import Slots
from relaxcomm.roles.optimizer_groups import refuse_all_but_plain_sgd
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.messages import Sparse

_RESIDUAL, _VELOCITY = "residual", "velocity"


@frozen
class momentum_correction(Memory):
    """Send momentum rather than gradients, and forget it where it was sent.

    `u <- momentum u + x`, `v <- v + u`, send `C(v)`, `v <- v - C(v)`; where C(v) is not 0, `u <- 0`. It
    stands in the place of error feedback and of the optimizer's momentum, which must be 0. Both u and v are
    at least float32, whatever the tensors are.

    Args:
        compressor: C, a sparsifier.
        momentum: in [0, 1).

    Raises: CompositionError around a compressor that keeps a residual itself.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import momentum_correction, top_k
        >>> compressor = momentum_correction(compressor=top_k(density=0.01), momentum=0.5)
        >>> x = torch.zeros(100).index_fill(0, torch.tensor([3]), 4.0).index_fill(0, torch.tensor([7]), 2.0)
        >>> [arrived[[3, 7]].tolist() for arrived in round_trip(compressor, [x, 0 * x, 0 * x])]
        [[4.0, 0.0], [0.0, 3.0], [0.0, 0.0]]

    Reference: Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for
        Distributed Training", ICLR 2018.

    Differs from the paper: what C rounds off of the entries that it sends stays in v.
    """

    compressor: Compressor
    momentum: Fraction = 0.9

    @cached_property
    def facts(self) -> CompressorFacts:
        own: Slots = {_RESIDUAL: "share", _VELOCITY: "share"}
        return self.facts_around(own, unbiased=False, memory="lossless")

    def check_optimizer(self, groups: list[dict[str, object]]) -> None:
        refuse_all_but_plain_sgd(self, groups)

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {_RESIDUAL: bucket.zeros(), _VELOCITY: bucket.zeros(), **inner_slots(self.compressor, bucket)}

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        velocity = torch.add(tensor, state[_VELOCITY], alpha=self.momentum)
        gathered = state[_RESIDUAL] + velocity
        sendable = gathered.to(tensor.dtype)
        coding = self.compressor.encode_decode(cx, sendable, inner_state(state, sendable), keep_sent=True)
        result, sent = yield from coding
        assert sent is not None
        if isinstance(sent, Sparse):
            sent.erase_in(velocity)
        else:
            velocity.mul_(sent == 0)
        state[_VELOCITY], state[_RESIDUAL] = velocity, subtract(gathered, sent)
        return result, sent
