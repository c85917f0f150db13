"""How far tensors are from a flat one, before anybody has made it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Where each part of one subtrahend lies between `start` and `stop`, and both terms there."""
        number = bisect_right(self.starts, start) - 1
        while start < stop:
            first, tensor = self.starts[number], self.subtrahends[number]
            end = min(stop, first + tensor.numel())
            yield start, end, self.minuend[start:end], tensor[start - first : end - first]
            start, number = end, number + 1
