"""The run log: JSON lines, written by a thread of its own."""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relaxcomm.metrics.snapshot import jsonable

_WRITE_SECONDS = 1.0


class RunLog:
    """Appends lines to a file.

    Values may be tensors on a GPU, and a disk may be slow: neither is waited for by whoever writes.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        # Waking the thread for each line would make the training wait for the interpreter's lock.
        self._lines: deque[Mapping[str, Any]] = deque()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="relaxcomm-log")
        self._thread.start()

    def write(self, line: Mapping[str, Any]) -> None:
        """Put a line behind the others; whoever calls must not change it any more."""
        self._lines.append(line)

    def close(self) -> None:
        """Write what is left."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        with self._file as file:
            ended = False
            while not ended:
                ended = self._closed.wait(_WRITE_SECONDS)
                while self._lines:
                    file.write(json.dumps(jsonable(self._lines.popleft())) + "\n")
                file.flush()


def log_path(folder: str | Path, run: str, rank: int) -> Path:
    """Where the log of a rank is.

    Example:
        >>> log_path("runs", "bsp-1", 0).as_posix()
        'runs/bsp-1.rank0.jsonl'
    """
    return Path(folder) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', run)}.rank{rank}.jsonl"
