"""How kernels read and write entries; those that take a residual add it where they read."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _places(ptr, entry):
    """Of entries; no thread takes more than four beside each other, as many as a float32 lets it, so that
    types of fewer bits do not have to pass between threads.
    """
    return tl.max_contiguous(ptr + entry, [1, 4 if entry.shape[1] >= 4 else 1])


@triton.jit
def read(ptr, entry, inside, is_whole):
    """Entries that are inside, or all of them without a mask: one made of a size that is no multiple of 16
    has a GPU read one by one.
    """
    places = _places(ptr, entry)
    return tl.load(places) if is_whole else tl.load(places, mask=inside, other=0)


@triton.jit
def write(ptr, entry, value, inside, is_whole):
    """The other way round."""
    places = _places(ptr, entry)
    if is_whole:
        tl.store(places, value)
    else:
        tl.store(places, value, mask=inside)


@triton.jit
def summed(tensor_ptr, residual_ptr, entry, inside, is_whole, decay, HAS_RESIDUAL: tl.constexpr):
    """Entries in float32; with a residual those of `x + decay e`."""
    total = read(tensor_ptr, entry, inside, is_whole).to(tl.float32)
    if HAS_RESIDUAL:
        total += decay * read(residual_ptr, entry, inside, is_whole)
    return total


@triton.jit
def corrected(
    tensor_ptr,
    residual_ptr,
    out_ptr,
    entry,
    inside,
    is_whole,
    decay,
    HAS_RESIDUAL: tl.constexpr,
):
    """The same as messages hold them; with a residual they are written."""
    total = summed(tensor_ptr, residual_ptr, entry, inside, is_whole, decay, HAS_RESIDUAL)
    if HAS_RESIDUAL:
        write(out_ptr, entry, total, inside, is_whole)
    return total.to(tensor_ptr.dtype.element_ty).to(tl.float32)
