"""Every entry of a tensor, in a few bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.tensors.bit_packing import unpack_codes
from relaxcomm.tensors.messages.message import QUANTIZED, SIGNS, Message
from relaxcomm.tensors.segments import Segments, chunk_size


@dataclass(frozen=True, eq=False)
class Quantized(Message):
    """Every entry as one of a few evenly spaced levels of its segment.

    Entry = `low + code step`; without lows the levels lie around 0: `(code - (num_codes - 1) / 2) step`.

    Args:
        codes: `[packed_bytes(numel, num_codes)]` uint8.
        steps: `[segments.count]`, float32 or float64; NaN where a segment is not finite.
        lows: like `steps`, or empty.
        num_codes: 2 to 256.
        segments: which entries share a step.
    """

    kind: ClassVar[str] = QUANTIZED
    codes: Tensor
    steps: Tensor
    lows: Tensor
    num_codes: int
    segments: Segments

    def add_to(self, total: Tensor, weight: float) -> None:
        codes = unpack_codes(self.codes, self.segments.numel, self.num_codes)
        size = chunk_size(codes)
        buffer = torch.empty(min(size, codes.numel()), dtype=self.steps.dtype, device=codes.device)
        for group in self.segments.groups(size):
            steps, lows = group.scales(self.steps), group.scales(self.lows)
            for chunk in group.chunks(size):
                rows = chunk.rows(codes)
                levels = buffer[: rows.numel()].view(rows.shape).copy_(rows)
                if self.lows.numel():
                    levels.mul_(steps).add_(lows)
                else:
                    levels.sub_((self.num_codes - 1) / 2).mul_(steps)
                chunk.rows(total).add_(levels, alpha=weight)


@dataclass(frozen=True, eq=False)
class Signs(Quantized):
    """One bit an entry: plus or minus half a step."""

    kind: ClassVar[str] = SIGNS
