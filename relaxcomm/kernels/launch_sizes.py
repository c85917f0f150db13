"""Sizes of launches, worked out on the host in every step."""

from __future__ import annotations


def next_power_of_two(number: int) -> int:
    """The least power of two that is not below a number of 1 or more; Triton's own takes some microseconds.

    Example:
        >>> next_power_of_two(1), next_power_of_two(4), next_power_of_two(5)
        (1, 4, 8)
    """
    return 1 << (number - 1).bit_length()
