"""Loops over quantised entries on a CPU, compiled by Numba; one thread runs them."""

from __future__ import annotations

import numpy as np
from numba import njit

from relaxcomm.kernels.code_lanes import ROUNDED
from relaxcomm.kernels.compiled.numba_compiling import add, code_run, compiled, subtract

_LEAST_NORMAL = np.finfo(np.float32).tiny
_ROUNDED = np.float32(ROUNDED)


@njit(inline="always")
def _extremes(bits, pair, numbers):
    """The least and the largest number of a block; both NaN if one of its numbers is."""
    least, largest = np.int32(0x7FFFFFFF), np.int32(-0x7FFFFFFF)
    for place in range(bits.shape[0]):
        key = bits[place] ^ ((bits[place] >> 31) & np.int32(0x7FFFFFFF))  # whole numbers in the same order
        least, largest = min(least, key), max(largest, key)
    pair[0] = least ^ ((least >> 31) & np.int32(0x7FFFFFFF))
    pair[1] = largest ^ ((largest >> 31) & np.int32(0x7FFFFFFF))
    low, high = numbers[0], numbers[1]
    if low != low or high != high:
        return np.float32(np.nan), np.float32(np.nan)
    return low, high


@njit(inline="always")
def _levels(low, high, last, is_symmetric, is_moved):
    """As `levels_between`: the distance of a block's levels, its inverse, or 0 for none, and the lowest."""
    if is_symmetric:
        high = max(high, -low)
        low = -high
    is_moved = is_moved and low < 0 and high >= 0
    step = np.float32((high - low) / (last - np.float32(is_moved)))
    inverse = np.float32(1) / step if step >= _LEAST_NORMAL else np.float32(0)
    return step, inverse, np.floor(low * inverse) * step if is_moved else low


@njit(inline="always")
def _origin(step, inverse, low, last):
    """As `origins`."""
    zero = min(max(np.floor(np.float32(0.5) - low * inverse), np.float32(0)), last)
    return (np.float32(0), zero) if zero * step == -low else (low, np.float32(0))


@njit(inline="always")
def _pack(whole, start, bits, packed):
    """Write the last bits of whole numbers as the codes of the entries from `start` on."""
    done, mask = 0, np.uint8((1 << bits) - 1)
    while done < whole.shape[0]:
        byte, shift, run = code_run(start + done, whole.shape[0] - done, bits, packed.shape[0])
        unit = np.uint8(1 << shift)
        here, into = whole[done : done + run], packed[byte : byte + run]
        if unit == 1:  # a byte's first digit, so that it needs no zero before
            for place in range(run):
                into[place] = np.uint8(here[place]) & mask
        else:
            for place in range(run):
                into[place] |= (np.uint8(here[place]) & mask) * unit
        done += run


@compiled
def quantize_blocks(
    start, x, subtrahend, residual, left, size, last, is_symmetric, is_moved, bits, packed, steps, lows
):
    """Write the code of each entry of `x - subtrahend + residual`, and each block's step and lowest level.

    Args:
        start: the number of the first entry, at which a block begins.
        x, subtrahend, residual: float32; the latter two None for 0.
        left: what the codes leave, float32, written into; None if nobody asks.
        size: of a block.
        last: float32, the largest code.
        is_symmetric: whether levels lie around 0.
        is_moved: whether those on both sides of 0 are moved so that it is one.
        bits: of a code, 1, 2, 4 or 8.
        packed: uint8, codes of all entries of the message, written into from the first entry on.
        steps, lows: of blocks, written into.
    """
    pair = np.empty(2, np.int32)
    numbers = pair.view(np.float32)
    places, near = np.empty(size, np.float32), np.empty(size, np.float32)
    whole, mask = places.view(np.int32), np.uint8((1 << bits) - 1)
    for block in range(steps.shape[0]):
        begin, end = block * size, min(block * size + size, x.shape[0])
        made, room = x[begin:end], near[: end - begin]
        if left is not None:
            room = left[begin:end]
        if subtrahend is not None:
            subtract(made, subtrahend[begin:end], room)
            made = room
        if residual is not None:
            add(made, residual[begin:end], room)
            made = room
        low, high = _extremes(made.view(np.int32), pair, numbers)
        step, inverse, low = _levels(low, high, last, is_symmetric, is_moved)
        shift, zero = np.float32(0), last / np.float32(2)
        if not is_symmetric:
            shift, zero = _origin(step, inverse, low, last)
        zero += _ROUNDED
        for place in range(end - begin):
            places[place] = (made[place] - shift) * inverse + zero
        _pack(whole[: end - begin], start + begin, bits, packed)
        steps[block] = step
        if not is_symmetric:
            lows[block] = low
        if left is not None:
            middle, into = last / np.float32(2) if is_symmetric else np.float32(0), left[begin:end]
            first = np.float32(0) if is_symmetric else low
            for place in range(end - begin):
                code = np.float32(np.uint8(whole[place]) & mask)
                into[place] = made[place] - ((code - middle) * step + first)


@compiled
def add_levels(total, size, bits, packed, steps, lows, middle, weights, is_new):
    """`total += weight ((code - middle) step + low)` of each message, block by block.

    Args:
        total: float32, written into.
        size: of a block.
        bits: of a code, 1, 2, 4 or 8.
        packed, steps, lows: of each message a tuple's entry; lows None for none.
        middle: float32, the code of 0 without lows, else 0.
        weights: of each message.
        is_new: whether `total` counts as 0.
    """
    for block in range(steps[0].shape[0]):
        begin, end = block * size, min(block * size + size, total.shape[0])
        here = total[begin:end]
        if is_new:
            here[:] = 0
        for row in range(len(packed)):
            step, weight, done = steps[row][block], weights[row], 0
            low = np.float32(0) if lows is None else lows[row][block]
            while done < end - begin:
                byte, shift, run = code_run(begin + done, end - begin - done, bits, packed[row].shape[0])
                unit = np.uint8(1 << shift)
                of_run, into = packed[row][byte : byte + run], here[done : done + run]
                mask, inverse = np.uint8(unit * ((1 << bits) - 1)), np.float32(1) / np.float32(unit)
                for place in range(run):
                    code = np.float32(np.uint8(of_run[place] & mask)) * inverse  # which is exact
                    into[place] += weight * ((code - middle) * step + low)
                done += run
