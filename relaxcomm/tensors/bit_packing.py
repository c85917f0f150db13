"""Small whole numbers, several to a byte."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from relaxcomm.tensors.segments import chunk_size

_TERNARY_DIGITS = 5  # 3^5 = 243 numbers fit a byte


def packed_bytes(numel: int, num_codes: int) -> int:
    """Bytes of `numel` numbers below `num_codes`.

    Example:
        >>> from relaxcomm.plugin import packed_bytes
        >>> packed_bytes(100, 3), packed_bytes(100, 8)
        (20, 38)
    """
    return sum(-(-numel // digits) for _, _, digits in digit_layers(num_codes))


def pack_codes(codes: Tensor, num_codes: int) -> Tensor:
    """Numbers below `num_codes` as bytes.

    Three codes take 1.6 bits each; others `ceil(log2 num_codes)` bits, whatever that is: their digits of
    8, 4, 2 and 1 bits are packed apart.

    Args:
        codes: `[numel]` uint8.
        num_codes: 2 to 256.

    Returns: `[packed_bytes(numel, num_codes)]` uint8.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import pack_codes
        >>> codes = torch.tensor([1, 0, 2, 1, 2], dtype=torch.uint8)
        >>> pack_codes(codes, num_codes=3).shape, pack_codes(codes, num_codes=8).shape
        (torch.Size([1]), torch.Size([3]))
    """
    layers = [
        _fold(_digit(codes, place, base), base, digits) for base, place, digits in digit_layers(num_codes)
    ]
    return layers[0] if len(layers) == 1 else torch.cat(layers)


def pack_signs(tensor: Tensor) -> Tensor:
    """What `pack_codes` makes of 1 for entries of 0 or more and 0 for negative ones and NaN, in one pass.

    Args:
        tensor: `[numel]`, floating-point.

    Example:
        >>> pack_signs(torch.tensor([0.5, -1.0, 0.0, 2.0]))
        tensor([13], dtype=torch.uint8)
    """
    size = -(-tensor.numel() // 8)
    whole = tensor.numel() - 7 * size  # bytes of which all eight bits are used
    if whole <= 0:
        return pack_codes(tensor.ge(0).view(torch.uint8), 2)
    packed = torch.empty(size, dtype=torch.uint8, device=tensor.device)
    rows = tensor.as_strided((8, whole), (size, 1), tensor.storage_offset())
    places = (1 << torch.arange(8, device=tensor.device)).to(tensor.dtype)
    for start in range(0, whole, chunk_size(tensor) // 8):
        part = rows[:, start : start + chunk_size(tensor) // 8]
        # A product with the place values: comparing to bits and shifting them takes three times as long.
        bits = torch.mv(torch.ge(part, 0, out=torch.empty_like(part)).t(), places)
        packed[start : start + part.shape[1]] = bits.int()
    last = tensor.as_strided((7, size - whole), (size, 1), tensor.storage_offset() + whole)
    packed[whole:] = (last.ge(0) * places[:7].view(7, 1)).sum(0).int()
    return packed


def unpack_codes(packed: Tensor, numel: int, num_codes: int) -> Tensor:
    """What `pack_codes` packed, `[..., numel]` uint8; it may share its memory.

    Args:
        packed: of a tensor, `[packed_bytes(numel, num_codes)]`, or of several, a row each.
        numel: entries of each.
        num_codes: 2 to 256.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import pack_codes, unpack_codes
        >>> codes = torch.tensor([1, 0, 2, 1, 2], dtype=torch.uint8)
        >>> unpack_codes(pack_codes(codes, num_codes=3), 5, 3)
        tensor([1, 0, 2, 1, 2], dtype=torch.uint8)
    """
    total: Tensor | None = None
    start = 0
    for base, place, digits in digit_layers(num_codes):
        size = -(-numel // digits)
        layer = _unfold(packed[..., start : start + size], base, digits)[..., :numel]
        total = layer if total is None else total.add_(layer, alpha=place)
        start += size
    assert total is not None
    return total


def places_bytes(numel: int, size: int) -> int:
    """Bytes of `numel` places among `size` entries.

    Example:
        >>> from relaxcomm.plugin import places_bytes
        >>> places_bytes(100, 16), places_bytes(100, 4096)
        (50, 150)
    """
    return sum(packed_bytes(numel, 1 << bits) for _, bits in place_planes(size))


def pack_places(places: Tensor, size: int) -> Tensor:
    """Places among `size` entries in `ceil(log2 size)` bits each.

    Args:
        places: `[numel]`, whole numbers below `size`.
        size: entries.

    Returns: `[places_bytes(numel, size)]` uint8.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import pack_places
        >>> pack_places(torch.tensor([3, 1]), 16)
        tensor([19], dtype=torch.uint8)
    """
    cuts = list(place_planes(size))
    if len(cuts) == 1:
        return pack_codes(places.to(torch.uint8), 1 << cuts[0][1])
    planes = [
        pack_codes((places >> shift).bitwise_and_((1 << bits) - 1).to(torch.uint8), 1 << bits)
        for shift, bits in cuts
    ]
    return torch.cat([places.new_empty(0, dtype=torch.uint8), *planes])


def unpack_places(packed: Tensor, numel: int, size: int) -> Tensor:
    """What `pack_places` packed, of a tensor or of several, a row each: `[..., numel]` uint8 or int32.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import pack_places, unpack_places
        >>> unpack_places(pack_places(torch.tensor([3, 1]), 16), 2, 16)
        tensor([3, 1], dtype=torch.uint8)
    """
    total: Tensor | None = None
    start = 0
    for shift, bits in place_planes(size):
        stop = start + packed_bytes(numel, 1 << bits)
        plane = unpack_codes(packed[..., start:stop], numel, 1 << bits)
        total = plane if total is None else total.int().add_(plane.int() << shift)
        start = stop
    return packed.new_zeros(*packed.shape[:-1], numel) if total is None else total


def place_planes(size: int) -> Iterator[tuple[int, int]]:
    """From which bit on, and how many bits, of a place below `size` are packed together.

    Example:
        >>> list(place_planes(4096))
        [(0, 8), (8, 4)]
    """
    bits = (size - 1).bit_length() if size > 1 else 0
    for shift in range(0, bits, 8):
        yield shift, min(8, bits - shift)


@functools.cache
def digit_layers(num_codes: int) -> tuple[tuple[int, int, int], ...]:
    """Base and place value of each digit that is packed apart, and how many of them share a byte."""
    if num_codes == 3:
        return ((3, 1, _TERNARY_DIGITS),)
    bits, shift, layers = (num_codes - 1).bit_length(), 0, []
    for width in (8, 4, 2, 1):
        if bits & width:
            layers.append((1 << width, 1 << shift, 8 // width))
            shift += width
    return tuple(layers)


def digit_bits(num_codes: int) -> int | None:
    """Bits of a code, where bytes hold 1, 2, 4 or 8 codes; else None.

    Example:
        >>> digit_bits(4), digit_bits(16), digit_bits(3), digit_bits(8)
        (2, 4, None, None)
    """
    (base, _, digits), *more = digit_layers(num_codes)
    return None if more or base == 3 else 8 // digits


def _digit(codes: Tensor, place: int, base: int) -> Tensor:
    if base == 3 or (place == 1 and base == 256):
        return codes
    shifted = codes if place == 1 else codes >> (place.bit_length() - 1)
    return shifted & (base - 1)


def _fold(codes: Tensor, base: int, digits: int) -> Tensor:
    """Digit r of byte j is code `r n + j` of n bytes, so that each digit is one run of memory."""
    if digits == 1:
        return codes
    size = -(-codes.numel() // digits)
    folded = torch.zeros(size, dtype=torch.uint8, device=codes.device)
    for row in range(digits - 1, -1, -1):
        part = codes[row * size : (row + 1) * size]
        folded.mul_(base)
        folded[: part.numel()] += part
    return folded


def _unfold(folded: Tensor, base: int, digits: int) -> Tensor:
    if digits == 1:
        return folded
    *several, size = folded.shape
    unfolded = torch.empty(*several, digits, size, dtype=torch.uint8, device=folded.device)
    rows = unfolded.unbind(-2)
    if base == 3:
        for start in range(0, size, chunk_size(folded)):
            here = slice(start, start + chunk_size(folded))
            left = folded[..., here].int()
            for row in rows:
                third = (left * 171) >> 9  # a division by 3, for numbers below 256
                row[..., here] = torch.sub(left, third, alpha=3)
                left = third
    else:
        for digit, row in enumerate(rows):
            torch.bitwise_right_shift(folded, digit * (base.bit_length() - 1), out=row)
            row &= base - 1
    return unfolded.flatten(-2)
