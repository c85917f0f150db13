"""Blocks of entries as evenly spaced levels between their extremes, each entry read once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from relaxcomm.kernels.code_lanes import code_lanes, is_one_layer
from relaxcomm.kernels.dispatch import is_for_kernels, on_its_device, uses_numba, uses_triton
from relaxcomm.kernels.levels import moves_to_zero
from relaxcomm.kernels.philox import Keys
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.bit_packing import digit_bits, pack_codes
from relaxcomm.tensors.differences import Difference
from relaxcomm.tensors.segments import Segments


def takes_blocks(tensor: Tensor, segments: Segments, num_codes: int, *, is_drawn: bool) -> bool:
    """Whether `quantize_blocks` takes a tensor: a kernel runs for it, whose blocks it can work on whole.

    On a GPU these are short, and a code is a byte; on a CPU no code is drawn. Float64 is for none of them.

    Example:
        >>> import torch
        >>> from relaxcomm.kernels.dispatch import implementation
        >>> with implementation("eager"):
        ...     takes_blocks(torch.zeros(8), Segments(8, block_size=4), num_codes=256, is_drawn=False)
        False
    """
    if uses_triton(tensor):
        return is_for_kernels(tensor) and code_lanes(segments, num_codes).row > 0
    is_plain = tensor.dtype == torch.float32 and segments.block_size is not None and not is_drawn
    return is_plain and uses_numba(tensor)


def quantize_blocks(
    tensor: Tensor,
    segments: Segments,
    num_codes: int,
    key: Keys | None,
    *,
    symmetric: bool = False,
    residual: Tensor | None = None,
    decay: float = 1.0,
    out: Tensor | None = None,
    difference: Difference | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of entries and the levels of their blocks, in one kernel.

    With a residual those of `u = x + decay e`, looked at as the messages' type holds it.

    Args:
        tensor: x, `[numel]`, which `takes_blocks`.
        segments: its blocks.
        num_codes: 2 to 256.
        key: of the random words, or None for the nearest level; one for each shard of the segments if any.
        symmetric: whether levels lie around 0.
        residual: e, `[numel]` float32, or None.
        decay: of the residual.
        out: `[numel]` float32, for what the codes leave of u; given with a residual.
        difference: x where nobody has made it yet, on a CPU; then `tensor` is memory that is free.

    Returns: codes, as `pack_codes` packs them, steps, `[count]` float32, and the lowest levels, likewise, of
        which there are none around 0.
    """
    if not uses_triton(tensor):
        x = tensor if difference is None else difference
        if decay != 1 and residual is not None and out is not None:  # rounds a product and a sum at once
            x = torch.add(_made(x, tensor), residual, alpha=decay, out=out)
            residual = None
        return _quantize_compiled(x, segments, num_codes, symmetric, residual, out)
    from relaxcomm.kernels.compiled import triton_block_quantizer

    with on_its_device(tensor):
        codes, steps, lows = triton_block_quantizer.launch(
            tensor, segments, num_codes, symmetric, key, residual, decay, out
        )
    return codes if is_one_layer(num_codes) else pack_codes(codes, num_codes), steps, lows


def _made(x: Tensor | Difference, out: Tensor) -> Tensor:
    return x.write_to(out) if isinstance(x, Difference) else x


def _quantize_compiled(
    tensor: Tensor | Difference,
    segments: Segments,
    num_codes: int,
    symmetric: bool,
    residual: Tensor | None,
    out: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    from relaxcomm.kernels.compiled import numba_levels

    size = segments.block_size
    assert size is not None, "takes_blocks takes blocks of one size"
    bits = digit_bits(num_codes)
    width = bits or 8  # others are packed afterwards
    codes = buffer_pool.empty(-(-segments.numel * width // 8), torch.uint8, torch.device("cpu"))
    steps = torch.empty(segments.count, dtype=torch.float32)
    lows = steps[:0] if symmetric else torch.empty_like(steps)
    if out is not None:
        torch.autograd.graph.increment_version(out)
    runs = tensor.runs(size) if isinstance(tensor, Difference) else ((0, segments.numel, tensor, None),)
    for begin, end, *terms in runs:
        here, blocks = slice(begin, end), slice(begin // size, -(-end // size))
        numba_levels.quantize_blocks(
            begin,
            *(None if term is None else term.numpy() for term in terms),
            *(None if flat is None else flat[here].numpy() for flat in (residual, out)),
            *(size, np.float32(num_codes - 1), symmetric, moves_to_zero(num_codes, symmetric=symmetric)),
            *(width, codes.numpy(), steps[blocks].numpy(), lows[blocks].numpy()),
        )
    return codes if bits else pack_codes(codes, num_codes), steps, lows
