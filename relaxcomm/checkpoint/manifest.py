"""Which checkpoints lie in a folder, and whether their files are as they were written."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Count, Index, Section
from relaxcomm.fields.validation import describe

MANIFEST = "manifest.json"
PARTIAL = ".partial"
_NAME = re.compile(r"step-\d+(-\d+)?")
_FORMAT = 1


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

    format: int = Field(ge=_FORMAT, le=_FORMAT)
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
        """That of a checkpoint.

        Raises: ConfigError, naming the file.
        """
        path = folder / MANIFEST
        try:
            whole = json.loads(path.read_bytes())
            text = whole["manifest"]
            if hashlib.sha256(text.encode()).hexdigest() != whole["sha256"]:
                raise ValueError("its checksum is another")
            return cls.model_validate_json(text)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        except ValidationError as error:
            raise ConfigError(f"{path}: {describe(error, 'manifest', cls)}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{path} is damaged ({error})") from None


def make(number: int, step: int, world_size: int, files: Mapping[str, File]) -> Manifest:
    """The manifest of a checkpoint that was just written."""
    return Manifest(format=_FORMAT, number=number, step=step, world_size=world_size, files=dict(files))


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
    has_lost_manifest = _NAME.fullmatch(folder.name) and any(folder.glob("*.distcp"))
    return bool((folder / MANIFEST).exists() or has_lost_manifest)


def checkpoints(path: Path) -> list[Kept]:
    """The checkpoints in a folder, oldest first; one with a damaged manifest comes last, to be told of."""
    found = []
    for folder in sorted(path.iterdir()) if path.is_dir() else ():
        if not is_checkpoint(folder):
            continue
        try:
            found.append(Kept(folder, Manifest.read(folder)))
        except ConfigError:
            found.append(Kept(folder, None))
    return sorted(found, key=lambda one: float("inf") if one.manifest is None else one.manifest.number)


def verify(folder: Path, files: Iterable[tuple[str, File]]) -> None:
    """Raise ConfigError for the first file that is not as it was written."""
    for name, expected in files:
        path = folder / name
        if Path(name).name != name:
            raise ConfigError(f"{folder / MANIFEST} speaks of {name!r}, which does not lie beside it")
        try:
            found = File.of(path)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        if found.size != expected.size:
            raise ConfigError(f"{path} has {found.size:,} bytes, and {expected.size:,} were written")
        if found != expected:
            raise ConfigError(f"{path} is damaged: its checksum is another")


def sync_folder(folder: Path) -> None:
    """See to it that the disk has the names of a folder's files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep_newest(path: Path, keep: int) -> None:
    """Delete the oldest checkpoints of a folder, and those that nobody can read."""
    readable = [one.folder for one in checkpoints(path) if one.manifest is not None]
    if len(readable) < keep:
        return
    for one in checkpoints(path):
        if one.folder not in readable[-keep:]:
            _remove(one.folder)


def _remove(folder: Path) -> None:
    """Delete a checkpoint; it is none from the first moment on."""
    left = folder.with_name(folder.name + PARTIAL)
    folder.rename(left)
    shutil.rmtree(left, ignore_errors=True)
