"""In which type sums are kept."""

from __future__ import annotations

import torch

HALVES = (torch.float16, torch.bfloat16)
"""Types whose sums lose much, and can overflow."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type itself, or float32 where it is shorter, so that small terms of a long sum are not lost.

    Example:
        >>> wide(torch.bfloat16)
        torch.float32
    """
    return torch.promote_types(dtype, torch.float32)
