"""Files that are written whole or not at all, and errors that name them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from relaxcomm.errors import ConfigError, RelaxcommError


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file beside its place and move it there, so that nobody ever sees half of it.

    Args:
        path: of the file; its folder is made.
        content: text is written as UTF-8.

    Returns: the path.

    Raises: RelaxcommError, naming the file, if the disk is full or the folder takes no files.
    """
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RelaxcommError(
            f"cannot write {path} ({len(data):,} bytes): {error.strerror}; what was there before is untouched"
        ) from error
    return path


def check_folder(folder: str | Path) -> None:
    """Make a folder for results and write something to it, before a run is spent on them.

    Raises: ConfigError.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"relaxcomm")
            file.flush()
    except OSError as error:
        raise ConfigError(
            f"output: cannot write to the folder {folder}: {error.strerror}; give another, or make room there"
        ) from None
