"""What all loops that Numba compiles share."""

from __future__ import annotations

from numba import njit


def compiled(function):
    """Compiled at the first call, and kept on disk for later runs where a place can be written to."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # a package folder and a home that are read-only
        return njit(nogil=True)(function)


@njit(inline="always")
def add(one, other, into):
    """`into = one + other`."""
    for place in range(into.shape[0]):
        into[place] = one[place] + other[place]


@njit(inline="always")
def subtract(one, other, into):
    """`into = one - other`."""
    for place in range(into.shape[0]):
        into[place] = one[place] - other[place]


@njit(inline="always")
def code_run(start, left, bits, num_bytes):
    """In which byte an entry's code lies, from which bit on, and how many of `left` follow, one a byte.

    Digit r of byte j is entry `r num_bytes + j`.
    """
    byte = start % num_bytes
    return byte, start // num_bytes * bits, min(left, num_bytes - byte)
