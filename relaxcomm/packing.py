"""Small whole numbers, several to a byte."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_TERNARY_DIGITS = 5  # 3^5 = 243 numbers fit a byte


def packed_bytes(numel: int, num_codes: int) -> int:
    """Bytes of `numel` numbers below `num_codes`.

    Example:
        >>> packed_bytes(100, 3), packed_bytes(100, 8)
        (20, 38)
    """
    return sum(-(-numel // digits) for _, _, digits in _layers(num_codes))


def pack_codes(codes: Tensor, num_codes: int) -> Tensor:
    """Numbers below `num_codes` as bytes.

    Three codes take 1.6 bits each; others `ceil(log2 num_codes)` bits, whatever that is: their digits of
    8, 4, 2 and 1 bits are packed apart.

    Args:
        codes: `[numel]` uint8.
        num_codes: 2 to 256.

    Returns: `[packed_bytes(numel, num_codes)]` uint8.

    Example:
        >>> pack_codes(torch.tensor([1, 0, 1, 1], dtype=torch.uint8), 2)
        tensor([13], dtype=torch.uint8)
    """
    layers = [_fold(_digit(codes, place, base), base, digits) for base, place, digits in _layers(num_codes)]
    return layers[0] if len(layers) == 1 else torch.cat(layers)


def unpack_codes(packed: Tensor, numel: int, num_codes: int) -> Tensor:
    """What `pack_codes` packed, `[numel]` uint8."""
    total: Tensor | None = None
    start = 0
    for base, place, digits in _layers(num_codes):
        size = -(-numel // digits)
        layer = _unfold(packed[start : start + size], base, digits)[:numel].mul_(place)
        total = layer if total is None else total.add_(layer)
        start += size
    assert total is not None
    return total


def _layers(num_codes: int) -> Iterator[tuple[int, int, int]]:
    """Base and place value of each digit that is packed apart, and how many of them share a byte."""
    if num_codes == 3:
        yield 3, 1, _TERNARY_DIGITS
        return
    bits, shift = (num_codes - 1).bit_length(), 0
    for width in (8, 4, 2, 1):
        if bits & width:
            yield 1 << width, 1 << shift, 8 // width
            shift += width


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
        return folded.clone()
    rows = torch.empty(digits, folded.numel(), dtype=torch.uint8, device=folded.device)
    for row in range(digits):
        if base == 3:
            torch.div(folded, base**row, rounding_mode="floor", out=rows[row])
            rows[row] %= base
        else:
            torch.bitwise_right_shift(folded, row * (base.bit_length() - 1), out=rows[row])
            rows[row] &= base - 1
    return rows.view(-1)
