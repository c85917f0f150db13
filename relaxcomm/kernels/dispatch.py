"""Which implementation runs for a tensor: a kernel in Triton or Numba, or the same in torch."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor

from relaxcomm.errors import UsageError

Implementation = Literal["triton", "torch", "numba", "eager"]
"""On a GPU Triton or torch; on a CPU Numba, or torch's operators one by one."""
DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16))
"""Types of the tensors that kernels read; float64 is coded as on a CPU."""
_FOR_GPUS = ("triton", "torch")
_LEAST_ENTRIES = 1 << 16  # of a tensor that is worth to import Numba for
_MOST_THREADS = 2  # of torch, for which one thread of Numba was measured to be faster
_chosen: ContextVar[Implementation | None] = ContextVar("implementation", default=None)


def is_for_kernels(tensor: Tensor) -> bool:
    """Whether compressors hand a tensor to this room: it lies on a GPU, in a type that kernels read.

    Example:
        >>> import torch
        >>> is_for_kernels(torch.zeros(2))
        False
        >>> with implementation("torch"):
        ...     is_for_kernels(torch.zeros(2))
        True
    """
    is_there = tensor.device.type == "cuda" or _chosen.get() in _FOR_GPUS
    return is_there and tensor.dtype in DTYPES and tensor.numel() > 0


def uses_triton(tensor: Tensor) -> bool:
    """Whether a kernel in Triton runs for a tensor; where not, the function written in torch does.

    Example:
        >>> import torch
        >>> uses_triton(torch.zeros(2))
        False
    """
    chosen = _chosen.get()
    if chosen in _FOR_GPUS:
        return chosen == "triton"
    # The memory, not what the tensor reports: one that only says that it is on a GPU has no driver.
    return tensor.untyped_storage().device.type == "cuda" and has_triton()


def uses_numba(tensor: Tensor) -> bool:
    """Whether a kernel in Numba runs for a tensor, of float32 or float64 on a CPU.

    It runs for large ones where Numba is installed and torch has one or two threads: it has one itself.

    Example:
        >>> import torch
        >>> with implementation("eager"):
        ...     uses_numba(torch.zeros(2))
        False
    """
    if tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64):
        return False
    chosen = _chosen.get()
    if chosen is not None:
        return chosen == "numba"
    is_worth_it = tensor.numel() >= _LEAST_ENTRIES and torch.get_num_threads() <= _MOST_THREADS
    return is_worth_it and has_numba()


def on_its_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Inside, kernels are launched on the GPU that a tensor lies on, if it does.

    Example:
        >>> import torch
        >>> with on_its_device(torch.zeros(2)):
        ...     uses_triton(torch.zeros(2))
        False
    """
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed, as it is with torch's builds for GPUs."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def has_numba() -> bool:
    """Whether Numba is installed and compiles for this processor.

    On others than x86-64 torch may round a product and a sum at once, and ranks would differ.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        import numba
    except ImportError:  # not installed, or for another NumPy
        return False
    return not numba.config.DISABLE_JIT


@contextmanager
def implementation(name: Implementation) -> Iterator[None]:
    """Inside, this implementation runs for all tensors it is for: for tests that compare them.

    Args:
        name: "triton" or "torch" for a GPU's, and then for a CPU's too; the former on a CPU's tensors needs
            `TRITON_INTERPRET=1`, set before Triton is imported. "numba" or "eager" for a CPU's.

    Raises: UsageError if Triton or Numba is asked for and could not run.

    Example:
        >>> import torch
        >>> with implementation("torch"):
        ...     uses_triton(torch.zeros(2))
        False
    """
    if name == "triton" and not has_triton():
        raise UsageError("implementation('triton') needs Triton, which is not installed: pip install triton")
    if name == "triton" and not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise UsageError(
            "implementation('triton') on a machine without a GPU needs Triton's interpreter: set the "
            "environment variable TRITON_INTERPRET=1 before Triton is imported"
        )
    if name == "numba" and not has_numba():
        raise UsageError(
            "implementation('numba') needs Numba on an x86-64 processor: pip install 'relaxcomm[numba]'"
        )
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)
