"""Inputs for kernels, and what both implementations make of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relaxcomm.kernels.dispatch import implementation
from tests.kernels.interpreter import DEVICE

SIZES = (1, 31, 1025, 4097)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = ("normal", "nan", "infinite", "equal", "zero", "tiny")


def entries(numel: int, dtype: torch.dtype = torch.float32, kind: str = "normal", seed: int = 0) -> Tensor:
    """A flat tensor of a kind, where kernels for GPUs run."""
    return host_entries(numel, dtype, kind, seed).to(DEVICE)


def host_entries(
    numel: int, dtype: torch.dtype = torch.float32, kind: str = "normal", seed: int = 0
) -> Tensor:
    """The same on the CPU."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    if kind == "nan":
        x[numel // 2] = math.nan
    elif kind == "infinite":
        x[numel // 3], x[-1] = math.inf, -math.inf
    elif kind == "equal":
        x.fill_(-0.7)
    elif kind == "zero":
        x.zero_()
    elif kind == "tiny":
        x *= 1e-39  # subnormal, of whose steps no inverse exists
    return x.to(dtype)


def counter(x: Tensor) -> Callable[[float], int]:
    """How many entries of a tensor exceed a threshold."""
    return lambda threshold: int((x.abs() > threshold).sum())


def both(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """What Triton and torch make of the same arguments, each with copies of its own."""
    found = []
    for name in ("triton", "torch"):
        own = [one.clone() if isinstance(one, Tensor) else one for one in arguments]
        with implementation(name), np.errstate(all="ignore"):  # in which the interpreter computes
            found.append(function(*own))
    return found[0], found[1]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, NaN where the other is NaN."""
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(12345.0), other.nan_to_num(12345.0))
