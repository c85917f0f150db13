"""The loop over parameters that a late result moves on a CPU, compiled by Numba."""

from __future__ import annotations

from relaxcomm.kernels.compiled.numba_compiling import compiled


@compiled
def add_difference(total, one, other):
    """`total += one - other`, all float32, with the bits of `one` where `total` is `other`."""
    for place in range(total.shape[0]):
        total[place] = one[place] - (other[place] - total[place])
