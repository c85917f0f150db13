"""Files that are written whole or not at all, and errors that name them."""

from __future__ import annotations

import os
import secrets
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

from relaxcomm.errors import ConfigError, RelaxcommError

_PRIVATE_BYTES = 65_536


def unshared(path: str, flags: int) -> int:
    """For `open`: a file that is made has the permissions of the umask, and none to write for all."""
    return os.open(path, flags, 0o664)


def expanded(path: str) -> str:
    """A path whose `~` or `~name` at the beginning is that user's home folder, as a shell reads it.

    Raises: ConfigError where none is known.
    """
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise ConfigError(
            f"{path}: no home folder is known of {Path(path).parts[0]}; write the path in full, or ./{path} "
            "for a place of that name"
        )
    return found


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, with the permissions of the umask, and none to write for all.

    Raises: OSError.
    """
    for one in (*reversed(folder.parents), folder):
        if not one.is_dir():
            one.mkdir(mode=0o775, exist_ok=True)


def make_private_folder(folder: Path) -> None:
    """Make a folder for parameters, or what else only its owner is to read; those above it as by the umask.

    Raises: OSError.
    """
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file beside its place and move it there, so that nobody ever sees half of it.

    Args:
        path: of the file; its folder is made.
        content: text is written as UTF-8.

    Returns: the path.

    Raises: RelaxcommError, naming the file, if the disk is full or the folder takes no files.
    """
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        make_folder(path.parent)
        with open(beside, "xb", opener=unshared) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        with suppress(OSError):  # where that is possible
            sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # as it was never made
            beside.unlink()
        raise RelaxcommError(
            f"cannot write {path} ({len(data):,} bytes): {error.strerror}; what was there before is untouched"
        ) from error
    return path


def sync_folder(folder: Path) -> None:
    """See to it that the disk has the names of a folder's files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        raise ConfigError(
            f"cannot read {what} {path}: {reason}; give the path of a file that is there and can be read"
        ) from None
    if len(data) > limit_bytes:
        raise ConfigError(f"{what} {path} has more than {limit_bytes:,} bytes, which is all that is read")
    return data


def read_private(path: Path, what: str) -> bytes:
    """The content of a small file that holds a secret.

    Raises: ConfigError if it cannot be read, or if others than its owner may read or write it.
    """
    data = read_at_most(path, _PRIVATE_BYTES, what)
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise ConfigError(
            f"{what}: others may read or write {path} (mode {mode:o}); chmod 600 {shlex.quote(str(path))}"
        )
    return data


def check_folder(key: str, folder: str | Path) -> None:
    """Make a folder for results and write something to it, before a run is spent on them.

    Args:
        key: of the configuration that names it.
        folder: its path.

    Raises: ConfigError.
    """
    try:
        make_folder(Path(folder))
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"relaxcomm")
            file.flush()
    except (OSError, ValueError) as error:  # ValueError: a path that holds a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{key}: cannot write to the folder {folder}: {reason}; give another, or make room there"
        ) from None
