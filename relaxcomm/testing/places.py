"""The line that asked a pretended GPU for something."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import FrameType


def place() -> str:
    """The line outside of torch and of this folder, "folder/file.py:line"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if name := _name_of(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


@functools.lru_cache(None)
def _name_of(file: str) -> str:
    path = Path(file)
    is_ours = "torch" in path.parts or path.parent == Path(__file__).parent
    return "" if is_ours or file.startswith("<") else f"{path.parent.name}/{path.name}"
