"""Three levels a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Index, Rate, frozen
from relaxcomm.kernels.segment_statistics import ScaleRule
from relaxcomm.primitives.compressors.uniform_quantizer import (
    QUANTIZER_FACTS,
    UniformQuantizer,
    tensor_segments,
)
from relaxcomm.roles import CompressorFacts
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.norms import norms
from relaxcomm.tensors.segments import Segments


@frozen
class terngrad(UniformQuantizer):
    """Minus s, 0 or s, in 1.6 bits, with an s for each tensor.

    `C(x)_i = s sgn(x_i) b_i`, b_i 1 with probability `min(1, |x_i| / s)` and 0 otherwise; `s = min(max |x|,
    clip rms(x))`. Entries beyond s are cut to it, and all others are unbiased. A tensor with NaN or
    infinity decodes to NaN.

    Args:
        clip: in units of `rms(x) = ||x|| / sqrt(d)`, or None to cut nothing.
        seed: of the drawing.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import terngrad
        >>> round_trip(terngrad(clip=None), [torch.tensor([2.0, -1.0, 0.1])] * 3)
        [tensor([ 2., -2.,  0.]), tensor([ 2., -2.,  0.]), tensor([ 2., -2.,  0.])]

    Reference: Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
        Learning", NIPS 2017.

    Differs from the paper: entries are clipped at multiples of their size about 0 rather than about the
        mean, so that a constant tensor is not lost; every worker has its own s.
    """

    clip: Rate | None = 2.5
    seed: Index = 0

    @cached_property
    def facts(self) -> CompressorFacts:
        return replace(QUANTIZER_FACTS, scope="tensor", clip=math.inf if self.clip is None else self.clip)

    @property
    def num_codes(self) -> int:
        return 3

    def segments(self, layout: Layout) -> Segments:
        return tensor_segments(layout)

    def spread(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self._cut(torch.maximum(rows.amax(1), -rows.amin(1)), rows.unbind())

    def spread_each(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        both = list(parts), torch._foreach_neg(list(parts))
        high, low = (torch.stack(list(torch._foreach_max(one))) for one in both)
        # Not `maximum`, which gives zeros a sign that depends on how many tensors there are.
        return self._cut(torch.where(low > high, low, high), parts)

    def _cut(self, step: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        if self.clip is not None:
            factors = [self.clip / math.sqrt(part.numel()) for part in parts]
            most = torch.stack(list(torch._foreach_mul(list(norms(parts).unbind()), factors)))
            step = torch.where(most < step, most, step)
        return step, step

    @property
    def scale_rule(self) -> ScaleRule:
        if self.clip is None:
            return ScaleRule("range", self.num_codes)
        return ScaleRule("clipped", self.num_codes, factor=self.clip)

    def contraction(self, numel: int) -> float | None:
        largest = math.sqrt(numel)  # of s ||x||_1 / ||x||^2
        return largest if self.clip is None else min(largest, self.clip) + 1
