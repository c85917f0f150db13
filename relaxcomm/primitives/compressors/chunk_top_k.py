"""The largest entries of each block, of a tensor or of its transform."""

from __future__ import annotations

import functools
import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Steps, frozen
from relaxcomm.primitives.compressors.block_top_k import largest
from relaxcomm.primitives.compressors.sparsifier import COUNT_BYTES, sum_sparse
from relaxcomm.roles import Coding, Compressor, Context, State
from relaxcomm.tensors.bit_packing import places_bytes
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.messages import SPARSE, BlockSparse, Coefficients, largest_block
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.segments import Blocks


class BlockTop(Compressor):
    """Sends the `num_kept` largest entries of each block."""

    num_kept: int

    kinds: ClassVar[frozenset[str]] = frozenset({SPARSE})
    unbiased: ClassVar[bool] = False

    @property
    def coding_scope(self) -> str:
        return "tensor"

    @abstractmethod
    def blocks(self, layout: Layout) -> tuple[Blocks, ...]:
        """The blocks of tensors, in order."""

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        return self.layout_values(one_tensor(numel), element_bytes)

    def layout_values(self, layout: Layout, element_bytes: int) -> tuple[int, int]:
        return _capacity(self.blocks(layout)), element_bytes

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.layout_bytes(one_tensor(numel), element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        blocks = self.blocks(layout)
        capacity = _capacity(blocks)
        return capacity * element_bytes + places_bytes(capacity, largest_block(blocks)) + COUNT_BYTES


@frozen
class chunk_top_k(BlockTop):
    """The entries of largest size in each chunk of a tensor; the others count as 0.

    `||C(x) - x||^2 <= (1 - k / chunk_size) ||x||^2`. Each tensor is cut on its own; its last chunk may be
    shorter. An index takes `ceil(log2 chunk_size)` bits. One of up to 256 float32 entries is chosen on a CPU
    by all bits but the last eight or fewer, the first of those that agree. Biased: use it in
    `error_feedback`.

    Args:
        num_kept: k, entries of each chunk.
        chunk_size: entries of a chunk.

    Example:
        >>> chunk_top_k(num_kept=64)
        chunk_top_k(num_kept=64)

    Reference: Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", arXiv 2508.15706.
    """

    num_kept: Steps
    chunk_size: Steps = 4096

    def contraction(self, numel: int) -> float | None:
        size = max(1, min(numel, self.chunk_size))
        return 1 - min(self.num_kept, size) / size if numel else 0.0

    def blocks(self, layout: Layout) -> tuple[Blocks, ...]:
        return tuple(
            Blocks(start + first, num, size, min(self.num_kept, size))
            for _, shape, start in layout.spans()
            for first, num, size in _cuts(shape.numel(), self.chunk_size)
        )

    def code(self, cx: Context, tensor: Tensor, state: State, *, keep_own: bool) -> Coding:
        blocks = self.blocks(cx.layout_of(tensor.numel()))
        message = BlockSparse(*largest(tensor, blocks), blocks)
        parts = yield message
        return sum_sparse(parts, tensor), message if keep_own else None


@frozen
class dct_top_k(BlockTop):
    """The largest coefficients of the cosine transform of each block; the others count as 0.

    A matrix is cut into blocks of `chunk_size` rows and columns (the last ones smaller), a vector into
    chunks of `chunk_size`; `C(x) = T^-1 top_k(T x)` in each, T the orthonormal DCT-II along every side. A
    tensor of more dimensions counts as a matrix of its first by all others. Biased: use it inside
    `error_feedback`.

    Args:
        num_kept: k, coefficients of each block.
        chunk_size: of a block's sides, in entries, up to 181.

    Example:
        >>> dct_top_k()
        dct_top_k()

    Reference: Peng et al., "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870.

    Differs from the code: sides are cut at multiples of the chunk size rather than into equal parts, which
        for a prime number of rows would be single ones.
    """

    num_kept: Steps = 32
    chunk_size: Steps = 64

    def blocks(self, layout: Layout) -> tuple[Blocks, ...]:
        found, start = [], 0
        for region in _regions(layout, self.chunk_size):
            found.append(Blocks(start, region.num, region.size, min(self.num_kept, region.size)))
            start = found[-1].stop
        return tuple(found)

    def contraction(self, numel: int) -> float | None:
        size = max(1, min(numel, self.chunk_size**2))
        return 1 - min(self.num_kept, size) / size if numel else 0.0

    def code(self, cx: Context, tensor: Tensor, state: State, *, keep_own: bool) -> Coding:
        layout = cx.layout_of(tensor.numel())
        regions, blocks = list(_regions(layout, self.chunk_size)), self.blocks(layout)
        kept = tensor.to(wide(tensor.dtype))
        coefficients = torch.cat([kept[:0], *(region.transformed(kept) for region in regions)])
        message = Coefficients(*largest(coefficients.to(tensor.dtype), blocks), blocks)

        def back(total: Tensor) -> Tensor:
            result = torch.empty_like(kept)
            for region, run in zip(regions, blocks, strict=True):
                region.restore(total[run.start : run.stop], result)
            return result

        own = back(sum_sparse([(1.0, message)], kept)) if keep_own else None
        parts = yield message
        return back(sum_sparse(parts, kept)), own


class _Region:
    """Blocks of equal sides that fill a rectangle of a matrix."""

    def __init__(self, start: int, shape: tuple[int, int], rows: _Cut, columns: _Cut) -> None:
        self._start, self._shape, self._rows, self._columns = start, shape, rows, columns
        self.num, self.size = rows[1] * columns[1], rows[2] * columns[2]

    def transformed(self, flat: Tensor) -> Tensor:
        """The coefficients of each block, one behind the other."""
        left, right = (cosines(cut[2], flat.dtype, flat.device) for cut in (self._rows, self._columns))
        return (left @ self._blocks(flat) @ right.t()).reshape(-1)

    def restore(self, coefficients: Tensor, flat: Tensor) -> None:
        """Write what has these coefficients."""
        left, right = (cosines(cut[2], flat.dtype, flat.device) for cut in (self._rows, self._columns))
        blocks = self._blocks(flat)
        blocks.copy_(left.t() @ coefficients.view(blocks.shape) @ right)

    def _blocks(self, flat: Tensor) -> Tensor:
        """The blocks, `[rows of blocks, columns of blocks, rows, columns]`."""
        matrix = flat[self._start : self._start + math.prod(self._shape)].view(self._shape)
        (row, num_rows, height), (column, num_columns, width) = self._rows, self._columns
        part = matrix[row : row + num_rows * height, column : column + num_columns * width]
        return part.view(num_rows, height, num_columns, width).transpose(1, 2)


_Cut = tuple[int, int, int]
"""Where parts of equal size begin, how many there are, and their size."""


def _cuts(numel: int, size: int) -> Iterator[_Cut]:
    """Parts of `size`, then what is left."""
    whole, rest = divmod(numel, size)
    if whole:
        yield 0, whole, size
    if rest:
        yield whole * size, 1, rest


def _regions(layout: Layout, chunk_size: int) -> Iterator[_Region]:
    for _, shape, start in layout.spans():
        rows = shape[0] if len(shape) > 1 else 1
        columns = shape.numel() // rows
        for one in itertools.product(_cuts(rows, chunk_size), _cuts(columns, chunk_size)):
            yield _Region(start, (rows, columns), *one)


@functools.lru_cache(maxsize=64)
def cosines(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The orthonormal DCT-II, `[size, size]`, a row for each frequency."""
    places = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * (places + 0.5) * places.view(-1, 1)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.to(device, dtype)


def _capacity(blocks: Sequence[Blocks]) -> int:
    return sum(run.num * run.num_kept for run in blocks)
