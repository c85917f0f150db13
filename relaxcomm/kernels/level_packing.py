"""Entries rounded to evenly spaced levels and packed to bits, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.kernels.code_lanes import ROUNDED, CodeLanes, code_lanes, fraction_bits, is_one_layer
from relaxcomm.kernels.dispatch import on_its_device, uses_triton
from relaxcomm.kernels.philox import Key, Keys
from relaxcomm.kernels.segment_scales import SegmentScales
from relaxcomm.kernels.segment_statistics import segment_of_entries
from relaxcomm.tensors.bit_packing import pack_codes
from relaxcomm.tensors.segments import Segments


def pack_levels(
    tensor: Tensor,
    scales: SegmentScales,
    segments: Segments,
    num_codes: int,
    key: Keys | None,
    *,
    dtype: torch.dtype | None = None,
    subtract: bool = False,
) -> Tensor:
    """Codes of entries, `(x - low) / step`, rounded to the nearest or, with a key, drawn, then packed.

    Without lows the levels lie around 0: code `(num_codes - 1) div 2` is 0. A drawn code is
    `floor((x - low) / step + u)`, u of the entry's own random word; where 0 is a level, an entry that is 0
    gets its code.

    Args:
        tensor: `[numel]`, float32, bfloat16 or float16.
        scales: of the segments; below the least normal step all entries of a segment are equal.
        segments: which entries share a step.
        num_codes: 2 to 256.
        key: of the random words, or None; in Triton, of segments in shards, one for each of them.
        dtype: which entries are rounded to before they are coded; that of the tensor unless given.
        subtract: whether the tensor, then float32, is to become what its codes leave out.

    Returns: `[packed_bytes(numel, num_codes)]` uint8, as `pack_codes` packs them.

    Example:
        >>> import torch
        >>> from relaxcomm.kernels.segment_scales import scales_of
        >>> from relaxcomm.tensors.bit_packing import unpack_codes
        >>> x, scales = torch.tensor([0.0, 0.4, 0.6, 15.0]), scales_of(torch.ones(1), torch.zeros(1), 16)
        >>> packed = pack_levels(x, scales, Segments(4, block_size=4), num_codes=16, key=None)
        >>> unpack_codes(packed, 4, 16)
        tensor([ 0,  0,  1, 15], dtype=torch.uint8)
    """
    steps, lows, origin = scales.steps, scales.lows, scales.origins
    if uses_triton(tensor):
        from relaxcomm.kernels.compiled import triton_level_packing

        given = scales.inverses, origin, lows, steps if subtract else None
        with on_its_device(tensor):
            packed = triton_level_packing.launch(
                tensor, given, segments, num_codes, key, dtype or tensor.dtype
            )
        return packed if is_one_layer(num_codes) else pack_codes(packed, num_codes)
    own = segment_of_entries(segments, tensor.device)
    places = tensor.to(dtype or tensor.dtype).float()
    places = (places if origin is None else places - origin[0][own]) * scales.inverses[own]
    places = torch.where(places == places, places, 0.0)
    zero: Tensor | int = (num_codes - 1) // 2 if origin is None else origin[1][own].int()
    if key is None:
        codes = (places + (zero + ROUNDED)).view(torch.int32)  # of which the last eight bits are kept
    else:
        bits = fraction_bits(num_codes, has_lows=lows is not None)
        assert isinstance(key, tuple), "only Triton draws for several shards at once"
        codes = _drawn(places, zero, bits, code_lanes(segments, num_codes), num_codes, key)
    codes = codes.to(torch.uint8)
    if subtract:
        middle = (num_codes - 1) / 2
        levels = (codes - middle) * steps[own] if lows is None else codes * steps[own] + lows[own]
        tensor.sub_(levels)
    return pack_codes(codes, num_codes)


def pack_nonnegative(
    tensor: Tensor,
    segments: Segments,
    *,
    dtype: torch.dtype | None = None,
    subtract: Tensor | None = None,
) -> Tensor:
    """One bit an entry: 1 for those of 0 or more, 0 for negative ones and NaN.

    Args:
        tensor: `[numel]`, float32, bfloat16 or float16.
        segments: which entries share a step.
        dtype: which entries are rounded to before they are looked at; that of the tensor unless given.
        subtract: steps, `[segments.count]` float32, plus or minus half of which is taken out of each entry of
            the tensor, then float32.

    Returns: `[packed_bytes(numel, 2)]` uint8.

    Example:
        >>> import torch
        >>> x = torch.tensor([0.5, -1.0, 0.0, 2.0])
        >>> pack_nonnegative(x, Segments(4, block_size=4), subtract=torch.ones(1)), x
        (tensor([13], dtype=torch.uint8), tensor([ 0.0000, -0.5000, -0.5000,  1.5000]))
    """
    if uses_triton(tensor):
        from relaxcomm.kernels.compiled import triton_level_packing

        given = None, None, None, subtract
        with on_its_device(tensor):
            return triton_level_packing.launch(tensor, given, segments, 2, None, dtype or tensor.dtype)
    signs = tensor.to(dtype or tensor.dtype).ge(0).view(torch.uint8)
    if subtract is not None:
        tensor.sub_((signs - 0.5) * subtract[segment_of_entries(segments, tensor.device)])
    return pack_codes(signs, 2)


def _drawn(
    places: Tensor, zero: Tensor | int, bits: int, lanes: CodeLanes, num_codes: int, key: Key
) -> Tensor:
    """`floor(place + u)` in fixed point; what is below its last bit counts by the word's upper bits."""
    words, most = lanes.words(key, places.device), (1 << 31) - (1 << bits)
    upper = (words >> bits).float() * 2.0 ** (bits - 32)
    fixed = (places * float(1 << bits) + upper).clamp(-most, most).floor().int()
    return (((fixed + (words & ((1 << bits) - 1)).int()) >> bits) + zero).clamp(0, num_codes - 1)
