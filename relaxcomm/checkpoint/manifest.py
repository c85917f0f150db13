"""Which checkpoints lie in a folder, and whether their files are as they were written."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Count, Index, Section
from relaxcomm.fields.validation import refusal
from relaxcomm.system.files import sync_folder

MANIFEST = "manifest.json"
PARTIAL = ".partial"
_ENDINGS = (".distcp", ".metadata")  # of the files beside a manifest
_NAME = re.compile(r"step-(\d{8,})(-\d+)?")
_LEFT = re.compile(rf"(left-[0-9a-f]{{8}}-)?{_NAME.pattern}(\.[0-9a-f]{{8}})?{re.escape(PARTIAL)}")
FORMAT = 1
_LONGEST_BYTES = 1 << 26  # hundreds of thousands of files


class File(Section):
    """A file of a checkpoint.

    Args:
        size: in bytes.
        sha256: of its content.
    """

    size: Index
    sha256: str

    @classmethod
    def of(cls, path: Path) -> File:
        """What a file is now, read back from where it was written."""
        with path.open("rb") as file:
            return cls(size=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


class Manifest(Section):
    """What a checkpoint says of itself.

    Args:
        format: of this file.
        number: how many checkpoints the folder had before it; the newest has the largest.
        step: optimizer steps of the run.
        world_size: number of ranks that saved it.
        files: by name.
    """

    format: int = Field(ge=FORMAT, le=FORMAT)
    number: Index
    step: Index
    world_size: Count
    files: dict[str, File]

    def write(self, folder: Path) -> None:
        """Write it, and see to it that the disk has it and the names of all files."""
        text = self.model_dump_json()
        digest = hashlib.sha256(text.encode()).hexdigest()
        with (folder / MANIFEST).open("w") as file:
            file.write(json.dumps({"manifest": text, "sha256": digest}))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a checkpoint.

        Raises: ConfigError, naming the file.
        """
        path = folder / MANIFEST
        try:
            if _size_of(path) > _LONGEST_BYTES:
                raise ValueError(f"it has more than {_LONGEST_BYTES:,} bytes")
            whole = json.loads(path.read_bytes())
            text = whole["manifest"]
            if hashlib.sha256(text.encode()).hexdigest() != whole["sha256"]:
                raise ValueError("its checksum is another")
            return cls.model_validate_json(text)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        except ValidationError as error:
            raise ConfigError(f"{path}: {refusal(error, 'manifest', cls)}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{path} is damaged ({error})") from None


@dataclass(frozen=True)
class Kept:
    """A checkpoint.

    Args:
        folder: where it lies.
        manifest: what it says of itself, or None if that is damaged or missing.
    """

    folder: Path
    manifest: Manifest | None


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint, and not one that was never finished, or holds several."""
    if folder.name.endswith(PARTIAL):
        return False
    if (folder / MANIFEST).exists():
        return True
    return bool(_NAME.fullmatch(folder.name)) and (_has_files(folder) or leads_nowhere(folder))


def leads_nowhere(path: Path) -> bool:
    """Whether it is a link to what is not there, such as a disk that is not mounted."""
    return path.is_symlink() and not path.exists()


def _has_files(folder: Path) -> bool:
    """Whether a folder holds parts of a state."""
    return folder.is_dir() and any(one.name.endswith(_ENDINGS) for one in folder.iterdir())


def unfinished(path: Path) -> list[Path]:
    """What was left of checkpoints that were never finished, or not deleted to the end."""
    return [one for one in sorted(path.iterdir()) if _LEFT.fullmatch(one.name)] if path.is_dir() else []


def checkpoints(path: Path) -> list[Kept]:
    """The checkpoints that were saved to a folder, oldest first; what others keep there is left alone.

    One may lie elsewhere, and a link here. One with a damaged manifest is placed by its name.
    """
    found = []
    for folder in sorted(path.iterdir()) if path.is_dir() else ():
        if not (_NAME.fullmatch(folder.name) and is_checkpoint(folder)):
            continue
        try:
            found.append(Kept(folder, Manifest.read(folder)))
        except ConfigError:
            found.append(Kept(folder, None))
    readable = [one.manifest for one in found if one.manifest is not None]
    return sorted(found, key=lambda one: _order(one, readable))


def _order(one: Kept, readable: Sequence[Manifest]) -> float:
    """How many there were before a checkpoint, as far as that is known."""
    if one.manifest is not None:
        return one.manifest.number
    named = _NAME.fullmatch(one.folder.name)
    step = int(named[1]) if named else math.inf
    return max((other.number for other in readable if other.step <= step), default=-1) + 0.5


def verify(folder: Path, files: Iterable[tuple[str, File]]) -> None:
    """Raise ConfigError for the first file that is not as it was written."""
    for name, expected in files:
        path = folder / name
        if Path(name).name != name:
            raise ConfigError(f"{folder / MANIFEST} speaks of {name!r}, which does not lie beside it")
        try:
            size = _size_of(path)
            found = File.of(path) if size == expected.size else None
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        if found is None:
            raise ConfigError(f"{path} has {size:,} bytes, and {expected.size:,} were written")
        if found != expected:
            raise ConfigError(f"{path} is damaged: its checksum is another")


def _size_of(path: Path) -> int:
    """The bytes of a file's content; what is no file, such as a device, may have no end.

    Raises: OSError.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    return found.st_size


def keep_newest(path: Path, keep: int) -> None:
    """Delete the oldest checkpoints that lie in a folder, and those that nobody can read."""
    found = [one for one in checkpoints(path) if not one.folder.is_symlink()]
    readable = [one.folder for one in found if one.manifest is not None]
    if len(readable) < keep:
        return
    for one in found:
        if one.folder not in readable[-keep:]:
            _remove(one.folder)


def _remove(folder: Path) -> None:
    """Delete a checkpoint; it is none from the first moment on."""
    left = folder.with_name(folder.name + PARTIAL)
    folder.rename(left)
    shutil.rmtree(left, ignore_errors=True)
