"""Loops over the entries of sparse messages on a CPU, compiled by Numba; one thread runs them."""

from __future__ import annotations

import numpy as np
from numba import njit

from relaxcomm.kernels.compiled.numba_compiling import add, code_run, compiled

_TOGETHER = np.uint64(16)  # entries, looked at one by one only if one of them is large
_NEAR = np.uint64(4096)  # entries that stay in the nearest cache until they are looked at


@compiled
def find_largest(one, subtrahend, other, flat, bits, size, low, values, places):
    """Write the entry of each block that has the first largest key, and its place.

    Args:
        one, subtrahend, other: of `flat = one - subtrahend + other`, float32, which is made on the way; the
            second None for 0, all of them where it is made already.
        flat: float32.
        bits: its own, int32.
        size: of a block.
        low: int32, ones where a key holds the place.
        values, places: written into.
    """
    kept = np.int32(0x7FFFFFFF) & ~low
    for block in range(places.shape[0]):
        largest, start = np.int32(0), block * size
        if other is not None:
            for place in range(size):
                made = one[start + place]
                if subtrahend is not None:
                    made -= subtrahend[start + place]
                flat[start + place] = made + other[start + place]
        for place in range(size):
            key = np.int32((bits[start + place] & kept) | np.int32(low - place))
            largest = max(largest, key)
        place = low - (largest & low)
        values[block], places[block] = flat[start + place], place


@njit(inline="always")
def _is_any_large(begin, bits, low):
    is_any = False
    for place in range(_TOGETHER):
        is_any |= (bits[begin + place] & np.int32(0x7FFFFFFF)) > low
    return is_any


@njit(inline="always")
def _keep_large(begin, end, flat, threshold, start, num, places, sizes):
    """Write those from `begin` to `end` that are large; how many have been written until then."""
    for index in range(begin, end):
        size = abs(flat[index])
        places[num], sizes[num] = start + index, size  # which the next one takes if it is not large
        num += np.uint64(size > threshold)
    return num


@compiled
def find_large(one, other, flat, bits, threshold, low, start, places, sizes):
    """Write the entries whose size exceeds a threshold; how many there are.

    Args:
        one, other: of `flat = one + other`, float32, which is made on the way; None where it is made already.
        flat: float32.
        bits: its own, int32.
        threshold: float32.
        low: its bits, int32.
        start: the number of the first entry.
        places: of their numbers, int64, with room for one more than there are entries.
        sizes: of their sizes, float32, with as much room.
    """
    # Unsigned throughout: a number that may be negative costs a test at each index.
    begin, numel, num, first = np.uint64(0), np.uint64(flat.shape[0]), np.uint64(0), np.uint64(start)
    while begin < numel:  # one loop that adds and looks takes twice the time
        near = min(begin + _NEAR, numel)
        if other is not None:
            add(one[begin:near], other[begin:near], flat[begin:near])
        while begin + _TOGETHER <= near:
            if _is_any_large(begin, bits, low):
                num = _keep_large(begin, begin + _TOGETHER, flat, threshold, first, num, places, sizes)
            begin += _TOGETHER
        num = _keep_large(begin, near, flat, threshold, first, num, places, sizes)
        begin = near
    return num


@compiled
def add_at(flat, starts, places, values, weight):
    """`flat[starts + places] += weight values`, `starts` None for 0; false at the first place outside."""
    numel = np.uint64(flat.shape[0])
    for number in range(places.shape[0]):
        index = np.int64(places[number])
        if starts is not None:
            index += np.int64(starts[number])
        if np.uint64(index) >= numel:
            return False
        flat[np.uint64(index)] += values[number] * weight
    return True


@compiled
def add_in_blocks(flat, size, num, packed, bits, first, values, weights, together, is_new):
    """`flat[k size + place] += weight values[first + k]` for each block k of each message; false if a place
    was outside its block.

    Args:
        flat: `[num size]`, written into, blocks of `size`.
        packed: of each message a tuple's entry: its places as `pack_places` packs them, digit r of byte j is
            place `r num_bytes + j`.
        bits: of a place.
        first: the number of the first block's place.
        values, weights: of each message.
        together: blocks into which all messages are added, while these are in the nearest cache.
        is_new: whether `flat` counts as 0.
    """
    # Unsigned throughout: a number that may be negative costs a test at each index.
    size, num, bits, together = np.uint64(size), np.uint64(num), np.uint64(bits), np.uint64(together)
    first, num_bytes = np.uint64(first), np.uint64(packed[0].shape[0])
    mask, last, largest = (np.uint64(1) << bits) - np.uint64(1), size - np.uint64(1), np.uint64(0)
    begin = np.uint64(0)
    while begin < num:
        end = min(begin + together, num)
        if is_new:
            flat[begin * size : end * size] = 0
        for row in range(len(values)):
            weight, of_row, bytes_of_row = weights[row], values[row], packed[row]
            done = begin
            while done < end:
                byte, shift, run = code_run(first + done, end - done, bits, num_bytes)
                start = done * size
                for k in range(run):
                    place = (np.uint64(bytes_of_row[byte + k]) >> shift) & mask
                    largest = max(largest, place)
                    flat[start + k * size + min(place, last)] += of_row[first + done + k] * weight
                done += run
        begin = end
    return largest < size
