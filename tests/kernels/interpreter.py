"""Triton's interpreter, mended where it differs from what a GPU computes."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import numpy as np
import torch

from tests.kernels.memory_accesses import look_at_memory

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")


def why_not() -> str | None:
    """Why no kernel can run here, or None; the interpreter is asked for before Triton is imported."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton), so kernels have nothing to run in"
    if HAS_GPU or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if "triton" in sys.modules:
        return "Triton was imported before its interpreter was asked for with TRITON_INTERPRET=1"
    os.environ["TRITON_INTERPRET"] = "1"
    return None


REASON = why_not()


def mend() -> None:
    """Triton 3.6 counts with what NumPy 2.4 takes for no number, and cuts and misreads bfloat16."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch_tensor, convert = interpreter._patch_lang_tensor, interpreter._convert_float

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda one: one.handle.data.item())

    def converted(data: Any, before: Any, after: Any, rounding_mode: Any) -> Any:
        if (before, after) == (tl.float32, tl.bfloat16):
            return torch.from_numpy(data.copy()).bfloat16().view(torch.uint16).numpy()
        if (before, after) == (tl.bfloat16, tl.float32):
            wide = torch.from_numpy(data.view(np.int16).copy()).view(torch.bfloat16).float()
            return wide.view(torch.int32).numpy().view(np.uint32)
        return convert(data, before, after, rounding_mode)

    interpreter._patch_lang_tensor, interpreter._convert_float = patched, converted
    look_at_memory(interpreter)
