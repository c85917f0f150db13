"""How far tensors are from a flat one, before anybody has made it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relaxcomm.tensors import buffer_pool

_LONG = 1 << 14  # entries for which a run of their own is worth it


@dataclass(frozen=True, eq=False)
class Difference:
    """`minuend - subtrahends`, to be made by whoever looks at the entries first.

    Args:
        minuend: `[numel]`.
        subtrahends: flat, none empty, one behind the other `[numel]` together, of the same type.
        starts: where each of them begins.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Difference
        >>> difference = Difference(torch.full((3,), 5.0), (torch.ones(2), torch.tensor([3.0])), (0, 2))
        >>> difference.write_to(torch.empty(3))
        tensor([4., 4., 2.])
    """

    minuend: Tensor
    subtrahends: Sequence[Tensor]
    starts: Sequence[int]

    def write_to(self, out: Tensor, start: int = 0) -> Tensor:
        """Make the entries from `start` on, as many as `out` holds."""
        for begin, end, minuend, subtrahend in self.parts(start, start + out.numel()):
            torch.sub(minuend, subtrahend, out=out[begin - start : end - start])
        return out

    def part(self, start: int, numel: int) -> Difference:
        """The difference of `numel` entries from `start`."""
        stop = start + numel
        parts = list(self.parts(start, stop))
        starts = [begin - start for begin, *_ in parts]
        return Difference(self.minuend[start:stop], [subtrahend for *_, subtrahend in parts], starts)

    def runs(self, block_size: int) -> Iterator[tuple[int, int, Tensor, Tensor | None]]:
        """Where runs of whole blocks begin and end, and both terms there; where several tensors meet it is
        made, and there is only one."""
        numel, done = self.minuend.numel(), 0
        for begin, end, minuend, subtrahend in self.parts(0, numel):
            first = -(-begin // block_size) * block_size
            last = end if end == numel else end // block_size * block_size
            if last - first < _LONG:
                continue
            if done < first:
                yield done, first, self._made(done, first), None
            yield first, last, minuend[first - begin : last - begin], subtrahend[first - begin : last - begin]
            done = last
        if done < numel:
            yield done, numel, self._made(done, numel), None

    def _made(self, start: int, stop: int) -> Tensor:
        minuend = self.minuend
        return self.write_to(buffer_pool.empty(stop - start, minuend.dtype, minuend.device), start)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Where each part of one subtrahend lies between `start` and `stop`, and both terms there."""
        number = bisect_right(self.starts, start) - 1
        while start < stop:
            first, tensor = self.starts[number], self.subtrahends[number]
            end = min(stop, first + tensor.numel())
            yield start, end, self.minuend[start:end], tensor[start - first : end - first]
            start, number = end, number + 1
