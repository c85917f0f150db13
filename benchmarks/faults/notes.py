"""What a rank saw, in a file that outlives it: one JSON object a line, timed by the machine's clock."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Notes:
    """Appends to a file, each line at once.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def add(self, kind: str, **facts: Any) -> None:
        """Add a line."""
        line = {"kind": kind, "seconds": time.monotonic(), **facts}
        os.write(self._file, (json.dumps(line) + "\n").encode())


def read(path: Path) -> list[dict[str, Any]]:
    """All lines so far; none where the rank has not begun."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
