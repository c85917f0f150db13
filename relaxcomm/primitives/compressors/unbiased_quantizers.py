"""Unbiased quantisers: levels around 0, each entry drawn to one of the two next to it."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Index, Levels, Rate, Steps, frozen
from relaxcomm.primitives.compressors.uniform_quantizer import Quantizer, tensor_segments
from relaxcomm.roles import Context
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.segments import Segments

_LEAST, _MOST = 1e-15, 1e15  # norms between which no square that matters leaves float32's range


@frozen
class qsgd(Quantizer):
    """Multiples of `||x|| / levels` in each block, drawn so that the expectation is x.

    `C(x)_i = ||x|| sgn(x_i) xi_i`, xi_i one of the two multiples of 1 / s next to `|x_i| / ||x||`, drawn in
    proportion. `E ||C(x) - x||^2 <= min(d / s^2, sqrt(d) / s) ||x||^2` for blocks of d entries. A block with
    NaN or infinity decodes to NaN.

    Args:
        levels: s, 1 to 127; an entry takes `ceil(log2(2 s + 1))` bits.
        block_size: entries that share a norm, which is sent in float32 (float64 for float64).
        seed: of the drawing.

    Example:
        >>> qsgd(levels=7)
        qsgd()

    Reference: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
        Encoding", NIPS 2017.

    Differs from the paper: codes have a fixed length rather than Elias's.
    """

    levels: Levels = 7
    block_size: Steps = 512
    seed: Index = 0

    @property
    def num_codes(self) -> int:
        return 2 * self.levels + 1

    def segments(self, cx: Context, numel: int) -> Segments:
        return Segments(numel, self.block_size)

    def spread(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        step = _norms(rows) / self.levels
        return step, step

    def contraction(self, numel: int) -> float | None:
        size = min(numel, self.block_size)
        return min(size / self.levels**2, math.sqrt(size) / self.levels)

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.segments_bytes(numel, -(-numel // self.block_size), element_bytes)


@frozen
class terngrad(Quantizer):
    """Minus s, 0 or s, in 1.6 bits, with an s for each tensor.

    `C(x)_i = s sgn(x_i) b_i`, b_i 1 with probability `min(1, |x_i| / s)` and 0 otherwise; `s = min(max |x|,
    clip rms(x))`. Entries beyond s are cut to it, and all others are unbiased. A tensor with NaN or
    infinity decodes to NaN.

    Args:
        clip: in units of `rms(x) = ||x|| / sqrt(d)`, or None to cut nothing.
        seed: of the drawing.

    Example:
        >>> terngrad(clip=None)
        terngrad(clip=None)

    Reference: Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
        Learning", NIPS 2017.

    Differs from the paper: entries are clipped at multiples of their size about 0 rather than about the
        mean, so that a constant tensor is not lost; every worker has its own s.
    """

    clip: Rate | None = 2.5
    seed: Index = 0

    meant_bias: ClassVar[bool] = True

    @property
    def num_codes(self) -> int:
        return 3

    @property
    def unbiased(self) -> bool:  # type: ignore[override]  # a fact that depends on an argument
        return self.clip is None

    @property
    def coding_scope(self) -> str:
        return "tensor"

    def segments(self, cx: Context, numel: int) -> Segments:
        return tensor_segments(cx, numel)

    def spread(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        step = torch.maximum(rows.amax(1), -rows.amin(1))
        if self.clip is not None:
            step = torch.minimum(step, self.clip / math.sqrt(rows.shape[1]) * _norms(rows))
        return step, step

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.layout_bytes(one_tensor(numel), element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        return self.segments_bytes(layout.numel, len(list(layout.spans())), element_bytes)


def _norms(rows: Tensor) -> Tensor:
    """The norm of each row; squares of very large and very small entries need a wide range."""
    if rows.device.type == "cpu":
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1)  # six times as fast
        if bool(((norms > _LEAST) & (norms < _MOST)).all()):
            return norms
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).to(rows.dtype)  # type: ignore[no-any-return]  # torch's
