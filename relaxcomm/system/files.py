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


def read_at_most(path: Path, limit_bytes: int, what: str) -> bytes:
    """A file's content.

    Args:
        path: of the file.
        limit_bytes: more are not read, so that what has no end cannot fill the memory.
        what: it is, as the error calls it.

    Raises: ConfigError if it cannot be read, or is larger.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a path that holds a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {what} {path}: {reason}") from None
    if len(data) > limit_bytes:
        raise ConfigError(f"{what} {path} has more than {limit_bytes:,} bytes, which is all that is read")
    return data


def check_folder(folder: str | Path) -> None:
    """Make a folder for results and write something to it, before a run is spent on them.

    Raises: ConfigError.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"relaxcomm")
            file.flush()
    except (OSError, ValueError) as error:  # ValueError: a path that holds a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"output: cannot write to the folder {folder}: {reason}; give another, or make room there"
        ) from None
