"""Sizes of entries as whole numbers, and the fixed grid on which they are counted."""

from __future__ import annotations

import torch
from torch import Tensor

MANTISSA_BITS = 6  # of a bin's number, behind the exponent's 8: a bin is 1.6 % wide
BIN_SHIFT = 23 - MANTISSA_BITS
NUM_BINS = 1 << (31 - BIN_SHIFT)
NUM_EXPONENTS = NUM_BINS >> MANTISSA_BITS
INFINITY = 0x7F800000
NOT_A_NUMBER = 0x7FC00000
LARGEST_FINITE = INFINITY - 1
ROW = 128  # entries whose largest one is noted
TILE = 32 * ROW  # entries that are worked on together
_MOST_COUNTED = 1 << 19
_GOLDEN = 0x9E3779B1  # 2^32 over the golden ratio


def magnitude_keys(values: Tensor) -> Tensor:
    """Whole numbers in the order of `|x|`: the bits of a float32 without its sign; NaN is beyond infinity.

    Args:
        values: `[n]`, float32, bfloat16 or float16.

    Returns: `[n]` int32.

    Example:
        >>> import torch
        >>> magnitude_keys(torch.tensor([-2.0, 1.0, float("inf"), float("nan")])).argsort()
        tensor([1, 0, 2, 3])
    """
    wide = values.float()
    keys = wide.view(torch.int32) & 0x7FFFFFFF
    return torch.where(wide == wide, keys, NOT_A_NUMBER)


def bin_slots(keys: Tensor) -> Tensor:
    """Where in a histogram `[2^MANTISSA_BITS, NUM_EXPONENTS]` keys count, int64.

    Bins beside each other lie far apart: most entries share few bins, and a GPU adds to one place of memory
    after the other.

    Example:
        >>> bin_slots(magnitude_keys(torch.tensor([0.0, 1.0, 1.5, 2.0])))
        tensor([   0,  127, 8319,  128])
    """
    bins = (keys >> BIN_SHIFT).long()
    return bins % (1 << MANTISSA_BITS) * NUM_EXPONENTS + (bins >> MANTISSA_BITS)


def counting_stride(numel: int) -> int:
    """One row of so many is counted, a power of two, so that half a million to a million entries are.

    Example:
        >>> counting_stride(1_000_000), counting_stride(1 << 30)
        (1, 2048)
    """
    return 1 << max(1, numel // _MOST_COUNTED).bit_length() - 1


def counted_entries(numel: int, device: torch.device) -> Tensor:
    """1 for each entry that is counted, `[numel]` int32: of each group of rows one, drawn by its number.

    Args:
        numel: entries of the tensor.
        device: of the result.

    Example:
        >>> import torch
        >>> counted_entries(5, torch.device("cpu"))
        tensor([1, 1, 1, 1, 1], dtype=torch.int32)
    """
    stride = counting_stride(numel)
    rows = torch.arange(-(-numel // ROW), device=device)
    drawn = ((rows // stride) * _GOLDEN & 0xFFFFFFFF) >> 16
    return ((rows ^ drawn) % stride == 0).int().repeat_interleave(ROW)[:numel]
