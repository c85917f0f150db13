"""Which tensors lie one behind the other in a flat tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Layout:
    """Tensors with their names and shapes, in flat order.

    Args:
        names: of the tensors.
        shapes: as many, each from its slowest dimension in memory to its fastest.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Layout
        >>> Layout(("a", "b"), (torch.Size([2, 2]), torch.Size([3]))).part(1, 5).shapes
        (torch.Size([3]), torch.Size([2]))
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @cached_property
    def numel(self) -> int:
        """Entries of all tensors."""
        return sum(shape.numel() for shape in self.shapes)

    def spans(self) -> Iterator[tuple[str, torch.Size, int]]:
        """Name, shape and start of each tensor that is not empty."""
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            if shape.numel():
                yield name, shape, start
            start += shape.numel()

    def part(self, start: int, numel: int) -> Layout:
        """What lies in `numel` entries from `start`; a tensor that is cut becomes a vector."""
        known = self._parts.get((start, numel))
        if known is None:
            known = self._parts[start, numel] = self._make_part(start, numel)
        return known

    @cached_property
    def _parts(self) -> dict[tuple[int, int], Layout]:
        """Those that were asked for, as they are in every exchange."""
        return {}

    def _make_part(self, start: int, numel: int) -> Layout:
        names, shapes = [], []
        for name, shape, begin in self.spans():
            inside = min(start + numel, begin + shape.numel()) - max(start, begin)
            if inside > 0:
                names.append(name)
                shapes.append(shape if inside == shape.numel() else torch.Size([inside]))
        return Layout(tuple(names), tuple(shapes))


def one_tensor(numel: int) -> Layout:
    """A vector without a name.

    Example:
        >>> from relaxcomm.plugin import one_tensor
        >>> one_tensor(12).shapes
        (torch.Size([12]),)
    """
    return Layout(("",), (torch.Size([numel]),))


def one_matrix(numel: int) -> Layout:
    """A matrix without a name, as near to a square as `numel` allows.

    Example:
        >>> one_matrix(12).shapes
        (torch.Size([3, 4]),)
    """
    rows = next((rows for rows in range(math.isqrt(numel), 0, -1) if numel % rows == 0), 0)
    return Layout(("",), (torch.Size([rows, numel // max(rows, 1)]),))
