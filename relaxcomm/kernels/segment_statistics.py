"""What scales are made of, of every segment of a tensor at once, through a table of offsets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.kernels.levels import levels_between
from relaxcomm.tensors.segments import Segments


@dataclass(frozen=True, eq=False)
class SegmentStatistics:
    """Statistics of the entries of each segment; lows and highs are NaN where one of them is not finite.

    Args:
        lows: `[count]` float32, the least entry.
        highs: `[count]` float32, the largest.
        sizes: `[count]` float64, `sum |x|`.
        squares: `[count]` float64, `sum x^2`.
        numbers: `[count]` float64, how many entries.
    """

    lows: Tensor
    highs: Tensor
    sizes: Tensor
    squares: Tensor
    numbers: Tensor


@dataclass(frozen=True)
class ScaleRule:
    """What the distance of a segment's levels is made of.

    Args:
        kind: "range", by `levels_between`; "norm", `factor ||x||`; "clipped", `min(max |x|, factor rms(x))`;
            "mean", `factor mean |x|`.
        num_codes: levels.
        symmetric: whether they lie around 0; only a "range" may not.
        factor: see above.
    """

    kind: Literal["range", "norm", "clipped", "mean"]
    num_codes: int
    symmetric: bool = True
    factor: float = 1.0

    def of(self, found: SegmentStatistics) -> tuple[Tensor, Tensor]:
        """Steps, and lowest levels, of which around 0 nothing is asked.

        Example:
            >>> import torch
            >>> from relaxcomm.tensors.segments import Segments
            >>> found = segment_statistics(torch.tensor([3.0, -4.0]), Segments(2, block_size=2))
            >>> [ScaleRule(kind, num_codes=3).of(found)[0].item() for kind in ("norm", "mean")]
            [5.0, 3.5]
        """
        if self.kind == "range":
            return levels_between(found.lows, found.highs, self.num_codes, symmetric=self.symmetric)
        if self.kind == "mean":
            step = (found.sizes / found.numbers * self.factor).float()
        elif self.kind == "norm":
            step = (found.squares.sqrt() * self.factor).float()
        else:
            rms = (found.squares / found.numbers).sqrt()
            step = torch.minimum(torch.maximum(found.highs, -found.lows), (rms * self.factor).float())
        return step, step


def segment_statistics(
    tensor: Tensor,
    segments: Segments,
    residual: Tensor | None = None,
    decay: float = 1.0,
    out: Tensor | None = None,
) -> SegmentStatistics:
    """Extremes and sums of each segment.

    With a residual `u = x + decay e` is written in it, and looked at as the messages' type holds it.

    Args:
        tensor: x, `[numel]`, float32, bfloat16 or float16.
        segments: which entries belong together.
        residual: e, `[numel]` float32, or None.
        decay: of the residual.
        out: for u, `[numel]` float32; given with a residual.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.segments import Segments
        >>> found = segment_statistics(torch.tensor([3.0, -4.0, 2.0]), Segments(3, None, sizes=(2, 1)))
        >>> found.lows, found.squares
        (tensor([-4.,  2.]), tensor([25.,  4.], dtype=torch.float64))
    """
    offsets = offsets_of(segments, tensor.device)
    seen = tensor
    if residual is not None:
        seen = torch.add(tensor, residual, alpha=decay, out=out).to(tensor.dtype)
    wide = seen.float()
    exact = wide.double()
    lows, highs = (_reduced(wide, which, offsets) for which in ("min", "max"))
    sizes, squares = (_reduced(one, "sum", offsets) for one in (exact.abs(), exact.square()))
    spoilt = (0 * squares).float()  # which no square of a float32 is, but that of NaN or infinity
    return SegmentStatistics(lows + spoilt, highs + spoilt, sizes, squares, offsets.diff().double())


def offsets_of(segments: Segments, device: torch.device) -> Tensor:
    """Where each segment begins, and the last ends, `[count + 1]` int64.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.segments import Segments
        >>> offsets_of(Segments(10, block_size=4), torch.device("cpu"))
        tensor([ 0,  4,  8, 10])
    """
    if segments.block_size is None:
        return device_numbers((0, *itertools.accumulate(segments.sizes)), torch.int64, device)
    numbers, shard = torch.arange(segments.count + 1, device=device), segments.shards[0]
    starts = numbers // shard.count * shard.numel + numbers % shard.count * segments.block_size
    return starts.clamp_(max=segments.numel)


def segment_of_entries(segments: Segments, device: torch.device) -> Tensor:
    """The segment that each entry belongs to, `[numel]` int64.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.segments import Segments
        >>> segment_of_entries(Segments(5, None, sizes=(2, 3)), torch.device("cpu"))
        tensor([0, 0, 1, 1, 1])
    """
    entries = torch.arange(segments.numel, device=device)
    if segments.block_size is not None:
        return entries // segments.block_size
    return torch.searchsorted(offsets_of(segments, device), entries, right=True) - 1


def _reduced(values: Tensor, reduction: str, offsets: Tensor) -> Tensor:
    # "unsafe" leaves out a check of the offsets for which the host would wait.
    return torch.segment_reduce(values, reduction, offsets=offsets, unsafe=True)
