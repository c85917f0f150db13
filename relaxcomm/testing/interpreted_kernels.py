"""Kernels in Triton on a pretended GPU: its interpreter runs them, each counts as one launch."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

CountKernel = Callable[[str, Sequence[Tensor]], None]
Launched = Callable[[str, Sequence[Tensor], Sequence[Tensor]], None]


def interprets_kernels() -> bool:
    """Whether Triton is there and was asked for its interpreter, as it must be before it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None


@contextmanager
def counted_kernels(count: CountKernel, launched: Launched | None) -> Iterator[None]:
    """Count kernels that Triton's interpreter runs, and none of the operators by which it does.

    Args:
        count: given a kernel's name, and the tensors that it was handed, one that came twice once.
        launched: given a kernel's name, the tensors that it left as they were, and those that it changed.
    """
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def counted(executor: Any, *args: Any, **kwargs: Any) -> Any:
        handed = [one for one in args if isinstance(one, Tensor)]
        handed = list({(one.data_ptr(), one.numel()): one for one in handed}.values())
        name = executor.fn.__name__
        count(name, handed)
        with _disable_current_modes():
            before = [_entries(one) for one in handed] if launched else []
            out = run(executor, *args, **kwargs)
            changed = [not torch.equal(_entries(one), old) for one, old in zip(handed, before, strict=False)]
        if launched:
            pairs = list(zip(handed, changed, strict=True))
            launched(name, *([one for one, did in pairs if did is it] for it in (False, True)))
        return out

    with patch.object(GridExecutor, "__call__", counted):
        yield


def _entries(tensor: Tensor) -> Tensor:
    """A copy of a tensor's bytes."""
    return tensor.detach().clone().reshape(-1).view(torch.uint8)
