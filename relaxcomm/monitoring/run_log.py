"""The run log: JSON lines, written by a thread of its own."""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from relaxcomm.errors import MetricsWarning, worded
from relaxcomm.monitoring.snapshot import jsonable
from relaxcomm.system.files import make_folder, unshared

_WRITE_SECONDS = 1.0
_RESERVED_BYTES = 4096  # for the last lines
_SAMPLED = ("time", "evaluation")  # what a line of a synchronisation, and of an evaluation, begins with


class RunLog:
    """Appends lines to a file that stays below a size.

    Values may be tensors on a GPU, and a disk may be slow: neither is waited for by whoever writes. When the
    file is full, every second line of the kind that has most goes, and from then on half as many are
    written; its first and its last line stay, and all lines of other kinds.

    Args:
        path: of the file.
        limit_bytes: of its size.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        make_folder(path.parent)
        self._file = self._open()
        self._full_bytes = limit_bytes - _RESERVED_BYTES
        self._strides = dict.fromkeys(_SAMPLED, 1)
        self._seen = dict.fromkeys(_SAMPLED, 0)
        self._left_out: dict[str, bytes] = {}  # the latest line of each kind, if it was not written
        self._last: Mapping[str, Any] = {}
        # Waking the thread for each line would make the training wait for the interpreter's lock.
        self._lines: deque[Mapping[str, Any]] = deque()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="relaxcomm-log")
        self._thread.start()

    def _open(self) -> BinaryIO:
        return open(self.path, "ab", opener=unshared)

    def write(self, line: Mapping[str, Any]) -> None:
        """Put a line behind the others; whoever calls must not change it any more.

        Its first key is its kind.
        """
        if self._thread.is_alive():  # else the disk was full, and lines would pile up
            self._lines.append(line)

    def close(self, last: Mapping[str, Any]) -> None:
        """Write what is left, and a last line."""
        self._last = last
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:  # a full disk, or what cannot be written: no reason to stop training
            with suppress(OSError):  # what it still holds finds no room, either
                self._file.close()
            self._lines.clear()
            reason = error.strerror if isinstance(error, OSError) else worded(error)
            text = f"the run log {self.path} ends here: {reason}; training goes on without it"
            warnings.warn(text, MetricsWarning, stacklevel=1)

    def _write_all(self) -> None:
        ended = False
        while not ended:
            ended = self._closed.wait(_WRITE_SECONDS)
            while self._lines:
                self._append(self._lines.popleft())
            self._file.flush()
        self._file.writelines([*self._left_out.values(), _text(self._last)])
        self._file.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        kind, text = next(iter(line)), _text(line)
        if kind in _SAMPLED:
            index = self._seen[kind]
            self._seen[kind] += 1
            if index % self._strides[kind]:
                self._left_out[kind] = text
                return
            self._left_out.pop(kind, None)
        self._file.write(text)
        if self._file.tell() > self._full_bytes:
            self._thin()

    def _thin(self) -> None:
        """Write anew what stays."""
        self._file.close()
        sizes = dict.fromkeys(_SAMPLED, 0)
        with self.path.open("rb") as lines:
            for text in lines:
                for kind in _SAMPLED:
                    sizes[kind] += len(text) if _is(kind, text) else 0
        most = max(_SAMPLED, key=lambda kind: sizes[kind])
        self._strides[most] *= 2
        fresh = self.path.with_suffix(".new")
        try:
            self._copy_every_second(most, fresh)
            fresh.replace(self.path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        self._file = self._open()

    def _copy_every_second(self, kind: str, target: Path) -> None:
        """Copy the file without every second line of a kind; the last of them is kept for the end."""
        index, gone = 0, b""
        with self.path.open("rb") as lines, open(target, "wb", opener=unshared) as file:
            for text in lines:
                if not _is(kind, text):
                    file.write(text)
                    continue
                gone = text if index % 2 else b""
                file.write(b"" if gone else text)
                index += 1
        if gone:
            self._left_out.setdefault(kind, gone)


def _text(line: Mapping[str, Any]) -> bytes:
    return json.dumps(jsonable(line)).encode() + b"\n"


def _is(kind: str, text: bytes) -> bool:
    return text.startswith(f'{{"{kind}":'.encode())


def log_path(folder: str | Path, run: str, rank: int) -> Path:
    """Where the log of a rank is.

    Example:
        >>> log_path("runs", "bsp-1", 0).as_posix()
        'runs/bsp-1.rank0.jsonl'
    """
    return Path(folder) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', run)}.rank{rank}.jsonl"
