"""The largest coefficients of each block's cosine transform."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Steps, frozen
from relaxcomm.kernels.dispatch import is_for_kernels
from relaxcomm.primitives.compressors.block_batches import BlockBatches, batched
from relaxcomm.primitives.compressors.block_top_k import BlockTopK, Cut, cuts, largest
from relaxcomm.primitives.compressors.weighted_sum import sum_sparse
from relaxcomm.roles import Coding, CompressorFacts, Context, State
from relaxcomm.tensors.host_copies import kept_per_stream, on_device
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import Coefficients
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.segments import Blocks


@frozen
class dct_top_k(BlockTopK):
    """The largest coefficients of the cosine transform of each block; the others count as 0.

    A matrix is cut into blocks of `chunk_size` rows and columns (the last ones smaller), a vector into
    chunks of `chunk_size`; `C(x) = T^-1 top_k(T x)` in each, T the orthonormal DCT-II along every side. Of a
    block that has no more than k entries all are sent as they are. A tensor of more dimensions counts as a
    matrix of its first by all others. Biased: use it inside `error_feedback`.

    Args:
        num_kept: k, coefficients of each block.
        chunk_size: of a block's sides, in entries, up to 181.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import dct_top_k
        >>> ramp = torch.arange(8.0)
        >>> (arrived,) = round_trip(dct_top_k(num_kept=2, chunk_size=8), [ramp])
        >>> arrived
        tensor([0.3407, 0.8217, 1.7104, 2.8716, 4.1284, 5.2896, 6.1783, 6.6593])

    Reference: Peng et al., "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870.

    Differs from the code: sides are cut at multiples of the chunk size rather than into equal parts, which
        for a prime number of rows would be single ones.
    """

    num_kept: Steps = 32
    chunk_size: Steps = 64

    facts: ClassVar[CompressorFacts] = BlockTopK.facts

    def blocks(self, layout: Layout) -> tuple[Blocks, ...]:
        return _blocks(layout, self.num_kept, self.chunk_size)

    def contraction(self, numel: int) -> float | None:
        size = max(1, min(numel, self.chunk_size**2))
        return 1 - min(self.num_kept, size) / size if numel else 0.0

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        layout = cx.layout_of(tensor.numel())
        regions, blocks = _regions(layout, self.chunk_size), self.blocks(layout)
        kept = tensor.to(wide(tensor.dtype))
        batches = _batches(layout, self.chunk_size, tensor.device) if is_for_kernels(tensor) else None
        if batches is None:
            coefficients = torch.cat(
                [kept[:0], *(region.transformed(kept, self._forwards) for region in regions)]
            )
        else:
            coefficients = batches.transformed(kept, self._forwards)
        message = Coefficients(*largest(coefficients.to(tensor.dtype), blocks), blocks)

        def back(total: Tensor) -> Tensor:
            if batches is not None:
                return batches.restored(total, self._backwards)
            result = torch.empty_like(kept)
            for region, run in zip(regions, blocks, strict=True):
                region.restore(total[run.start : run.stop], result, self._backwards)
            return result

        sent = back(sum_sparse([(1.0, message)], kept)) if keep_sent else None
        parts = yield message
        return back(sum_sparse(parts, kept)), sent

    def _forwards(self, blocks: Tensor) -> Tensor:
        """What is sent of blocks, `[..., rows, columns]`: their coefficients, or all entries as they are.

        The roundings of a transform and back would be left to send for ever.
        """
        if self._keeps_all(blocks):
            return blocks
        left, right = _cosines_of(blocks)
        return left @ blocks @ right.t()

    def _backwards(self, blocks: Tensor) -> Tensor:
        """Blocks of which that was sent."""
        if self._keeps_all(blocks):
            return blocks
        left, right = _cosines_of(blocks)
        return left.t() @ blocks @ right

    def _keeps_all(self, blocks: Tensor) -> bool:
        return blocks.shape[-2:].numel() <= self.num_kept


class _Region:
    """Blocks of equal sides that fill a rectangle of a matrix."""

    def __init__(self, start: int, shape: tuple[int, int], rows: Cut, columns: Cut) -> None:
        (row, num_rows, height), (column, num_columns, width) = rows, columns
        matrix = torch.empty(shape, device="meta")
        part = matrix[row : row + num_rows * height, column : column + num_columns * width]
        blocks = part.view(num_rows, height, num_columns, width).transpose(1, 2)
        self._sizes, self._strides, self._start = (
            blocks.shape,
            blocks.stride(),
            start + blocks.storage_offset(),
        )
        self.num, self.size = num_rows * num_columns, height * width

    def transformed(self, flat: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
        """What is made of each block, one behind the other."""
        return transform(self.blocks(flat)).reshape(-1)

    def restore(self, made: Tensor, flat: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
        """Write the blocks of which that was made."""
        blocks = self.blocks(flat)
        blocks.copy_(transform(made.view(blocks.shape)))

    def blocks(self, flat: Tensor) -> Tensor:
        """The blocks, `[rows of blocks, columns of blocks, rows, columns]`."""
        return flat.as_strided(self._sizes, self._strides, flat.storage_offset() + self._start)


@functools.lru_cache(256)
def _regions(layout: Layout, chunk_size: int) -> tuple[_Region, ...]:
    found = []
    for _, shape, start in layout.spans():
        rows = shape[0] if len(shape) > 1 else 1
        columns = shape.numel() // rows
        for one in itertools.product(cuts(rows, chunk_size), cuts(columns, chunk_size)):
            found.append(_Region(start, (rows, columns), *one))
    return tuple(found)


@functools.lru_cache(256)
def _blocks(layout: Layout, num_kept: int, chunk_size: int) -> tuple[Blocks, ...]:
    found, start = [], 0
    for region in _regions(layout, chunk_size):
        found.append(Blocks(start, region.num, region.size, min(num_kept, region.size)))
        start = found[-1].stop
    return tuple(found)


@kept_per_stream(256)
def _batches(layout: Layout, chunk_size: int, device: torch.device) -> BlockBatches:
    entries = torch.arange(layout.numel)
    return batched([region.blocks(entries) for region in _regions(layout, chunk_size)], device)


def _cosines_of(blocks: Tensor) -> list[Tensor]:
    """For the rows and the columns of blocks."""
    return [cosines(size, blocks.dtype, blocks.device) for size in blocks.shape[-2:]]


@kept_per_stream(64)
def cosines(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The orthonormal DCT-II, `[size, size]`, a row for each frequency."""
    places = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * (places + 0.5) * places.view(-1, 1)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return on_device(matrix.to(dtype), device)
