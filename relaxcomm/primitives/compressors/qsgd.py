"""Levels around 0 in units of the norm of a block."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import Index, Levels, Steps, frozen
from relaxcomm.kernels.segment_statistics import ScaleRule
from relaxcomm.primitives.compressors.uniform_quantizer import QUANTIZER_FACTS, UniformQuantizer
from relaxcomm.roles import CompressorFacts
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.norms import row_norms
from relaxcomm.tensors.segments import Segments


@frozen
class qsgd(UniformQuantizer):
    """Multiples of `||x|| / levels` in each block, drawn so that the expectation is x.

    `C(x)_i = ||x|| sgn(x_i) xi_i`, xi_i one of the two multiples of 1 / s next to `|x_i| / ||x||`, drawn in
    proportion. `E ||C(x) - x||^2 <= min(d / s^2, sqrt(d) / s) ||x||^2` for blocks of d entries. A block with
    NaN or infinity decodes to NaN.

    Args:
        levels: s, 1 to 127; an entry takes `ceil(log2(2 s + 1))` bits.
        block_size: entries that share a norm, which is sent in float32 (float64 for float64).
        seed: of the drawing.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import qsgd
        >>> x = torch.tensor([3.0, -4.0, 0.0, 0.0])
        >>> round_trip(qsgd(levels=1), [x] * 3)
        [tensor([ 5., -5.,  0.,  0.]), tensor([5., 0., 0., 0.]), tensor([ 5., -5.,  0.,  0.])]

    Reference: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
        Encoding", NIPS 2017.

    Differs from the paper: codes have a fixed length rather than Elias's.
    """

    levels: Levels = 7
    block_size: Steps = 512
    seed: Index = 0

    facts: ClassVar[CompressorFacts] = QUANTIZER_FACTS

    @property
    def num_codes(self) -> int:
        return 2 * self.levels + 1

    def segments(self, layout: Layout) -> Segments:
        return Segments(layout.numel, self.block_size)

    def spread(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        step = row_norms(rows) / self.levels
        return step, step

    @property
    def scale_rule(self) -> ScaleRule:
        return ScaleRule("norm", self.num_codes, factor=1 / self.levels)

    def contraction(self, numel: int) -> float | None:
        size = min(numel, self.block_size)
        return min(size / self.levels**2, math.sqrt(size) / self.levels)
