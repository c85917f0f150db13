"""The largest entries of each block: what compressors that send them share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.kernels import block_maxima
from relaxcomm.kernels.block_selection import largest_in_blocks
from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.kernels.dispatch import is_for_kernels
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.sparsifier import COUNT_BYTES
from relaxcomm.roles import Compressor, CompressorFacts
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.bit_packing import pack_places, places_bytes
from relaxcomm.tensors.differences import Difference
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.messages import SPARSE, block_starts, largest_block
from relaxcomm.tensors.segments import SHORT, Blocks


class BlockTopK(Compressor):
    """Sends the `num_kept` largest entries of each block."""

    num_kept: int

    facts: ClassVar[CompressorFacts] = replace(
        identity.facts,
        kinds=frozenset({SPARSE}),
        scope="tensor",
        linear=False,
        unbiased=False,
        keeps_finite=False,
    )

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


Cut = tuple[int, int, int]
"""Where parts of equal size begin, how many there are, and their size."""


def cuts(numel: int, size: int) -> Iterator[Cut]:
    """Parts of `size`, then what is left."""
    whole, rest = divmod(numel, size)
    if whole:
        yield 0, whole, size
    if rest:
        yield whole * size, 1, rest


def _capacity(blocks: Sequence[Blocks]) -> int:
    return sum(run.num * run.num_kept for run in blocks)


def largest(
    flat: Tensor, blocks: tuple[Blocks, ...], terms: tuple[Tensor | Difference, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Values, packed places in their blocks and number of the largest entries; NaN counts as the largest.

    Args:
        flat: `[numel]`.
        blocks: all of its entries, in order.
        terms: two tensors whose sum it becomes first, if `block_maxima.takes` it; the first may be a
            difference.
    """
    most = largest_block(blocks)
    if blocks and is_for_kernels(flat):
        values, places = largest_in_blocks(flat, blocks)
        packed = pack_places(places, most)
    elif blocks and block_maxima.takes(flat, max(run.num_kept for run in blocks), most):
        values, places = block_maxima.largest_of_blocks(flat, blocks, terms)
        packed = pack_places(places, most)
    else:
        values, packed = _largest_of_any(flat, blocks)
    return values, packed, device_numbers((values.numel(),), torch.int32, flat.device)


def _largest_of_any(flat: Tensor, blocks: tuple[Blocks, ...]) -> tuple[Tensor, Tensor]:
    """The same of any number, without it."""
    starts = block_starts(blocks, flat.device)
    places = buffer_pool.empty(starts.numel(), torch.int32, flat.device)
    parts = torch.split(flat, [run.num * run.size for run in blocks])
    into = torch.split(places, [run.num * run.num_kept for run in blocks])
    for size, num_kept, alike in _alike(blocks):
        together = parts[alike[0]] if len(alike) == 1 else torch.cat([parts[index] for index in alike])
        _find(together.view(-1, size), num_kept, [into[index] for index in alike])
    packed = pack_places(places, largest_block(blocks))
    indices = places.add_(starts) if starts.dtype == places.dtype else places + starts
    return torch.index_select(flat, 0, indices, out=buffer_pool.empty_like(starts, flat.dtype)), packed


def _alike(blocks: Sequence[Blocks]) -> Iterator[tuple[int, int, list[int]]]:
    """Size of a block, how many entries of it are kept, and which runs have such; long ones stand alone."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for index, run in enumerate(blocks):
        alone = index if run.num * run.size > SHORT else -1
        found.setdefault((run.size, run.num_kept, alone), []).append(index)
    for (size, num_kept, _), alike in found.items():
        yield size, num_kept, alike


def _find(rows: Tensor, num_kept: int, into: Sequence[Tensor]) -> None:
    """Write where the largest entries of each row stand into tensors that hold those of some rows each."""
    if num_kept > 1:
        found = torch.topk(rows.abs(), num_kept, dim=1, sorted=False).indices
    else:
        found = rows.abs().max(1, keepdim=True).indices
    torch._foreach_copy_(list(into), list(torch.split(found.view(-1), [one.numel() for one in into])))
