"""The weighted sum of all workers' messages, in one write."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relaxcomm.kernels.code_lanes import is_one_layer
from relaxcomm.kernels.dispatch import on_its_device, uses_triton
from relaxcomm.kernels.segment_statistics import offsets_of, segment_of_entries
from relaxcomm.tensors.bit_packing import unpack_codes
from relaxcomm.tensors.segments import Segments


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape as one, `[len(tensors), ...]`; no copy where they lie at even distances.

    Example:
        >>> import torch
        >>> gathered = torch.arange(10).view(2, 5)
        >>> together = stacked([row[1:3] for row in gathered])
        >>> together, together.untyped_storage().data_ptr() == gathered.untyped_storage().data_ptr()
        (tensor([[1, 2],
                [6, 7]]), True)
    """
    first = tensors[0]
    starts = [tensor.storage_offset() for tensor in tensors]
    distance = starts[1] - starts[0] if len(tensors) > 1 else 0
    memory, strides = first.untyped_storage().data_ptr(), first.stride()
    in_one_place = all(
        start == starts[0] + index * distance
        and tensor.stride() == strides
        and tensor.untyped_storage().data_ptr() == memory
        for index, (tensor, start) in enumerate(zip(tensors, starts, strict=True))
    )
    if in_one_place and distance >= 0:
        return first.as_strided((len(tensors), *first.shape), (distance, *strides), starts[0])
    return torch.stack(list(tensors))


def sum_levels(
    codes: Tensor, steps: Tensor, lows: Tensor | None, weights: Tensor, segments: Segments, num_codes: int
) -> Tensor:
    """`sum_w weight_w (low_w + code_w step_w)`; without lows `code - (num_codes - 1) / 2` times the step.

    Args:
        codes: `[workers, packed_bytes(numel, num_codes)]` uint8, a row one behind the other.
        steps: `[workers, segments.count]` float32.
        lows: like `steps`, or None.
        weights: `[workers]` float32.
        segments: of the tensor, with at least one entry.
        num_codes: 2 to 256.

    Returns: `[numel]` float32; workers are added up in their order.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.bit_packing import pack_codes
        >>> codes = pack_codes(torch.tensor([0, 3, 1, 2], dtype=torch.uint8), num_codes=4).view(1, -1)
        >>> steps, half = torch.tensor([[1.0, 2.0]]), torch.tensor([0.5])
        >>> sum_levels(codes, steps, 0 * steps, half, Segments(4, block_size=2), num_codes=4)
        tensor([0.0000, 1.5000, 1.0000, 2.0000])
    """
    if uses_triton(steps):
        from relaxcomm.kernels.compiled import triton_message_sums

        if not is_one_layer(num_codes):
            codes = unpack_codes(codes, segments.numel, num_codes)
        offsets = None if segments.block_size else offsets_of(segments, codes.device)
        with on_its_device(steps):
            return triton_message_sums.launch(codes, steps, lows, weights, offsets, segments, num_codes)
    own = segment_of_entries(segments, codes.device)
    levels = unpack_codes(codes, segments.numel, num_codes).float()
    if lows is None:
        levels = (levels - (num_codes - 1) / 2) * steps[:, own]
    else:
        levels = levels * steps[:, own] + lows[:, own]
    return (levels * weights.view(-1, 1)).sum(0)


def add_entries(total: Tensor, values: Tensor, indices: Tensor, counts: Tensor, weights: Tensor) -> None:
    """`total[index] += weight value` for the used entries of all messages, the same on every rank.

    Args:
        total: `[numel]`, written into.
        values: `[workers, capacity]`.
        indices: `[workers, capacity]`, whole numbers.
        counts: `[workers, 1]`: only so many entries of a message are used.
        weights: `[workers]`, of the type of `total`.

    Example:
        >>> import torch
        >>> total, values = torch.zeros(3), torch.tensor([[1.0, 2.0], [4.0, 9.0]])
        >>> indices, counts = torch.tensor([[0, 2], [2, 0]]), torch.tensor([[2], [1]])
        >>> add_entries(total, values, indices, counts, torch.tensor([1.0, 0.5]))
        >>> total
        tensor([1., 0., 4.])
    """
    places = torch.arange(values.shape[1], device=values.device)
    used = places < counts
    # What is unused adds nothing, each at a place of its own: many additions at one place take turns.
    places = torch.where(used, indices.long(), places)
    parts = torch.where(used, values.to(total.dtype) * weights.view(-1, 1), 0)
    # On a GPU this sorts by place and then adds in order, where `index_add_` adds in any order.
    total.index_put_((places.view(-1),), parts.view(-1), accumulate=True)
