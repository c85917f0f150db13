"""What kernels that take a residual share: they add it where they read entries."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def summed(tensor_ptr, residual_ptr, entry, inside, decay, HAS_RESIDUAL: tl.constexpr):
    """Entries in float32; with a residual those of `x + decay e`."""
    total = tl.load(tensor_ptr + entry, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        total += decay * tl.load(residual_ptr + entry, mask=inside, other=0.0)
    return total


@triton.jit
def corrected(
    tensor_ptr,
    residual_ptr,
    out_ptr,
    entry,
    inside,
    decay,
    HAS_RESIDUAL: tl.constexpr,
):
    """The same as messages hold them; with a residual they are written."""
    total = summed(tensor_ptr, residual_ptr, entry, inside, decay, HAS_RESIDUAL)
    if HAS_RESIDUAL:
        tl.store(out_ptr + entry, total, mask=inside)
    return total.to(tensor_ptr.dtype.element_ty).to(tl.float32)
