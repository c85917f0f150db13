"""Every entry of a tensor, in a few bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.bit_packing import packed_bytes, unpack_codes
from relaxcomm.tensors.messages.message import QUANTIZED, SIGNS, Message
from relaxcomm.tensors.segments import Group, Segments, chunk_size


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

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Quantized, Segments, pack_codes
        >>> codes = pack_codes(torch.tensor([0, 3, 1, 2], dtype=torch.uint8), num_codes=4)
        >>> steps, lows = torch.tensor([1.0, 0.5]), torch.tensor([0.0, 10.0])
        >>> message = Quantized(codes, steps, lows, num_codes=4, segments=Segments(4, block_size=2))
        >>> total = torch.zeros(4)
        >>> message.add_to(total, weight=1.0)
        >>> total, message.num_bytes
        (tensor([ 0.0000,  3.0000, 10.5000, 11.0000]), 17)
    """

    kind: ClassVar[str] = QUANTIZED
    codes: Tensor
    steps: Tensor
    lows: Tensor
    num_codes: int
    segments: Segments

    def add_to(self, total: Tensor, weight: float) -> None:
        """Add the entries, times a weight, to a tensor."""
        size = chunk_size(self.codes)
        buffer = buffer_pool.empty(min(size, total.numel()), self.steps.dtype, total.device)
        for group, chunk, codes in self._chunks(size):
            levels = self._levels(group, codes, out=buffer[: codes.numel()].view(codes.shape))
            # A product and a sum at once would be rounded once, which no compiled loop and no GPU does.
            chunk.rows(total).add_(levels.mul_(weight))

    def write_to(self, out: Tensor) -> None:
        """Write the entries to a tensor of the type of the steps."""
        for group, chunk, codes in self._chunks(chunk_size(self.codes)):
            self._levels(group, codes, out=chunk.rows(out))

    def shards(self) -> list[Self]:
        """The message of each shard of the segments, in the memory of this one."""
        each = self.segments.shards
        counts = [one.count for one in each]
        codes = torch.split(self.codes, [packed_bytes(one.numel, self.num_codes) for one in each])
        steps = torch.split(self.steps, counts)
        lows = torch.split(self.lows, counts) if self.lows.numel() else [self.lows] * len(each)
        return [
            replace(self, codes=one, steps=step, lows=low, segments=segments)
            for one, step, low, segments in zip(codes, steps, lows, each, strict=True)
        ]

    def of_shards(self, messages: Sequence[Message]) -> Self:
        """A message like this one from those of its shards."""
        codes, steps, lows = (
            torch.cat([getattr(one, name) for one in messages]) for name in ("codes", "steps", "lows")
        )
        return replace(self, codes=codes, steps=steps, lows=lows)

    def _chunks(self, size: int) -> Iterator[tuple[Group, Group, Tensor]]:
        """Parts of about so many entries with the segments that they belong to, and their codes."""
        codes = unpack_codes(self.codes, self.segments.numel, self.num_codes)
        for group in self.segments.groups(size):
            for chunk in group.chunks(size):
                yield group, chunk, chunk.rows(codes)

    def _levels(self, group: Group, codes: Tensor, out: Tensor) -> Tensor:
        steps, levels = group.beside(group.own(self.steps)), out.copy_(codes)
        if self.lows.numel():
            return levels.mul_(steps).add_(group.beside(group.own(self.lows)))
        return levels.sub_((self.num_codes - 1) / 2).mul_(steps)


@dataclass(frozen=True, eq=False)
class Signs(Quantized):
    """One bit an entry: plus or minus half a step.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Segments, Signs, pack_codes
        >>> codes = pack_codes(torch.tensor([0, 1, 1], dtype=torch.uint8), num_codes=2)
        >>> segments = Segments(3, block_size=3)
        >>> message = Signs(codes, torch.tensor([4.0]), torch.empty(0), num_codes=2, segments=segments)
        >>> total = torch.zeros(3)
        >>> message.add_to(total, weight=1.0)
        >>> total
        tensor([-2.,  2.,  2.])
    """

    kind: ClassVar[str] = SIGNS
