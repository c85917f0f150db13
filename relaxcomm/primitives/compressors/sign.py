"""One bit an entry."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.kernels.dispatch import is_for_kernels
from relaxcomm.kernels.level_packing import pack_nonnegative
from relaxcomm.kernels.segment_scales import segment_scales
from relaxcomm.kernels.segment_statistics import ScaleRule
from relaxcomm.primitives.compressors.fused_feedback import QuantizedFeedback
from relaxcomm.primitives.compressors.uniform_quantizer import QUANTIZER_FACTS, tensor_segments
from relaxcomm.roles import Coding, CompressorFacts, Context, State
from relaxcomm.tensors.bit_packing import pack_signs, packed_bytes
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.messages import SIGNS, Signs
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.segments import Group, Segments, chunk_size

_RULE = ScaleRule("mean", num_codes=2, factor=2.0)


@frozen
class sign(QuantizedFeedback):
    """The sign of each entry, times the mean size of its tensor: `C(x) = (||x||_1 / d) sign(x)`.

    Zeros count as positive. `||C(x) - x||^2 = ||x||^2 - ||x||_1^2 / d <= (1 - 1 / d) ||x||^2` for each tensor
    of d entries. Biased: use it inside `error_feedback`, or with the exchange `vote`. A tensor with NaN or
    infinity decodes to NaN or infinity.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import sign
        >>> round_trip(sign(), [torch.tensor([3.0, -1.0, 0.0, 2.0])])
        [tensor([ 1.5000, -1.5000,  1.5000,  1.5000])]

    Reference: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018;
        Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019, for the scale.
    """

    facts: ClassVar[CompressorFacts] = replace(
        QUANTIZER_FACTS, kinds=frozenset({SIGNS}), scope="tensor", unbiased=False
    )

    def contraction(self, numel: int) -> float | None:
        return 1 - 1 / numel if numel else 0.0

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        message = _message(tensor, tensor_segments(cx.layout_of(tensor.numel())).cut(cx.shard_size))
        parts = yield message
        sent = self.decoded([(1.0, message)], tensor) if keep_sent else None  # held by nobody on its way
        return self.decoded(parts, tensor), sent

    def message_with_feedback(
        self, cx: Context, tensor: Tensor, residual: Tensor, decay: float, out: Tensor
    ) -> Signs:
        segments = tensor_segments(cx.layout_of(tensor.numel())).cut(cx.shard_size)
        steps = segment_scales(tensor, segments, _RULE, residual, decay, out).steps
        codes = pack_nonnegative(out, segments, dtype=tensor.dtype, subtract=steps)
        return Signs(codes, steps, steps[:0], 2, segments)

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.layout_bytes(one_tensor(numel), element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        return packed_bytes(layout.numel, 2) + len(list(layout.spans())) * max(4, element_bytes)


def _message(tensor: Tensor, segments: Segments) -> Signs:
    if is_for_kernels(tensor):
        steps = segment_scales(tensor, segments, _RULE).steps
        return Signs(pack_nonnegative(tensor, segments), steps, steps[:0], 2, segments)
    steps = tensor.new_empty(segments.count, dtype=wide(tensor.dtype))
    for group in segments.groups(chunk_size(tensor)):
        group.own(steps).copy_(2 * _mean_sizes(group, tensor))
    return Signs(pack_signs(tensor), steps, steps[:0], 2, segments)


def _mean_sizes(group: Group, tensor: Tensor) -> Tensor:
    """`||x||_1 / d` of each segment in float64, in which no sum of float32 overflows."""

    def exact() -> Tensor:
        sizes = group.split(group.rows(tensor).abs())
        return torch.stack([one.sum(dtype=torch.float64) for one in sizes])

    if tensor.device.type == "cpu" and tensor.dtype == torch.float32:
        total = _short_sums(group, tensor)
        is_finite = total.isfinite()
        if not bool(is_finite.all()):
            total = torch.where(is_finite, total, exact())
    else:
        total = exact()
    return total / group.lengths(tensor.device)


def _short_sums(group: Group, tensor: Tensor) -> Tensor:
    """`||x||_1` of each segment, summed up in the tensor's type while it is in the cache."""
    size = chunk_size(tensor)
    sizes = tensor.new_empty(min(size, group.stop - group.start))
    total = torch.zeros(group.num, dtype=torch.float64)
    for chunk in group.chunks(size):
        rows = chunk.rows(tensor).view(-1)
        here = torch.abs(rows, out=sizes[: rows.numel()])
        total += torch.stack([one.sum() for one in chunk.split(here)])
    return total
