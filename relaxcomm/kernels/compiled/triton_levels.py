"""Which levels entries become, as `relaxcomm.kernels.levels` has them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def inverse_steps(step):
    """As `inverse_steps`."""
    is_normal = step >= 1.1754943508222875e-38  # of others no inverse exists
    one = tl.full(step.shape, 1.0, dtype=tl.float32)
    return tl.where(is_normal, tl.div_rn(one, tl.where(is_normal, step, one)), 0.0)


@triton.jit
def levels_between(low, high, IS_SYMMETRIC: tl.constexpr, IS_MOVED: tl.constexpr, LAST: tl.constexpr):
    """As `levels_between`, and the inverse of the steps; IS_MOVED as `moves_to_zero`."""
    if IS_SYMMETRIC:
        high = tl.maximum(high, -low)
        low = -high
    is_moved = IS_MOVED & (low < 0) & (high >= 0)
    step = tl.div_rn(high - low, LAST - is_moved.to(tl.float32))
    inverse = inverse_steps(step)
    levels = low * inverse
    # At most -1 where it is below 0: a GPU's floor takes a subnormal number for 0.
    levels = tl.where(levels < 0, tl.minimum(tl.floor(levels), -1.0), levels)
    return step, inverse, tl.where(is_moved, levels * step, low)


@triton.jit
def origins(step, inverse, low, LAST: tl.constexpr):
    """As `origins`."""
    zero = tl.minimum(tl.maximum(tl.floor(0.5 - low * inverse), 0.0), LAST * 1.0)
    is_level = zero * step == -low
    return tl.where(is_level, 0.0, low), tl.where(is_level, zero, 0.0)
