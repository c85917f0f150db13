"""What kernels that take a residual share: they add it where they read entries."""

from __future__ import annotations

import triton
import triton.language as tl


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
    """Entries in float32 as messages hold them; with a residual those of `x + decay e`, which is written."""
    value = tl.load(tensor_ptr + entry, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        kept = tl.load(residual_ptr + entry, mask=inside, other=0.0)
        total = value.to(tl.float32) + decay * kept
        tl.store(out_ptr + entry, total, mask=inside)
        value = total.to(tensor_ptr.dtype.element_ty)
    return value.to(tl.float32)
