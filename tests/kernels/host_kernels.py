"""What Numba and torch's own operators make of the same on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from relaxcomm.kernels.dispatch import has_numba, implementation

needs_numba = pytest.mark.skipif(not has_numba(), reason="Numba is not installed, or not for this processor")


def on_host(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """What both make of the same arguments, each with copies of its own."""
    found = []
    for name in ("numba", "eager"):
        own = [one.clone() if isinstance(one, Tensor) else one for one in arguments]
        with implementation(name):
            found.append(function(*own))
    return found[0], found[1]
