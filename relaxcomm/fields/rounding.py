"""Whole numbers of things from fractions of them."""

from __future__ import annotations

import math

_ROUNDING = 1e-9  # relative; products of fractions are off by 1e-16 or so


def fewest(share: float, total: float) -> int:
    """The least whole number that is `share` of `total`, where rounding of the product counts for nothing.

    Example:
        >>> fewest(0.07, 100), 0.07 * 100
        (7, 7.000000000000001)
    """
    exact = share * total
    nearest = round(exact)
    return nearest if math.isclose(exact, nearest, rel_tol=_ROUNDING) else math.ceil(exact)
