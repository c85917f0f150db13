"""Blocks of entries as evenly spaced levels between their extremes, each entry read once."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.kernels.code_lanes import code_lanes, is_one_layer
from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.kernels.dispatch import on_its_device, uses_triton
from relaxcomm.kernels.philox import Key
from relaxcomm.tensors.bit_packing import pack_codes
from relaxcomm.tensors.segments import Segments


def levels_between(
    low: Tensor, high: Tensor, num_codes: int, *, symmetric: bool = False
) -> tuple[Tensor, Tensor]:
    """Distance of evenly spaced levels, `(high - low) / (num_codes - 1)`, and the lowest.

    Args:
        low: least entries, `[count]`.
        high: largest entries, likewise.
        num_codes: levels.
        symmetric: whether they lie around 0.

    Example:
        >>> import torch
        >>> levels_between(torch.tensor([-1.0]), torch.tensor([2.0]), num_codes=4)
        (tensor([1.]), tensor([-1.]))
    """
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    # By a tensor: of a number a GPU would take the inverse first, and round twice.
    return (high - low) / device_numbers((num_codes - 1,), low.dtype, low.device), low


def takes_blocks(tensor: Tensor, segments: Segments, num_codes: int) -> bool:
    """Whether `quantize_blocks` takes a tensor: a kernel runs for it, blocks are short and a code is a byte.

    Example:
        >>> import torch
        >>> takes_blocks(torch.zeros(8), Segments(8, block_size=4), num_codes=256)  # not on a CPU
        False
    """
    return uses_triton(tensor) and code_lanes(segments, num_codes).row > 0


def quantize_blocks(
    tensor: Tensor,
    segments: Segments,
    num_codes: int,
    key: Key | None,
    *,
    symmetric: bool = False,
    residual: Tensor | None = None,
    decay: float = 1.0,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `segment_statistics`, `levels_between` and `pack_levels` make in turn, in one kernel.

    With a residual those of `u = x + decay e`, looked at as the messages' type holds it.

    Args:
        tensor: x, `[numel]`, which `takes_blocks`.
        segments: its blocks.
        num_codes: 2 to 256.
        key: of the random words, or None for the nearest level.
        symmetric: whether levels lie around 0.
        residual: e, `[numel]` float32, or None.
        decay: of the residual.
        out: `[numel]` float32, for what the codes leave of u; given with a residual.

    Returns: codes, as `pack_codes` packs them, steps, `[count]` float32, and the lowest levels, likewise, of
        which there are none around 0.
    """
    from relaxcomm.kernels.compiled import triton_block_quantizer

    lanes = code_lanes(segments, num_codes)
    with on_its_device(tensor):
        codes, steps, lows = triton_block_quantizer.launch(
            tensor, lanes, num_codes, symmetric, key, residual, decay, out
        )
    return codes if is_one_layer(num_codes) else pack_codes(codes, num_codes), steps, lows
