"""The newest checkpoint of a folder that is whole, the same one on all ranks."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from relaxcomm.checkpoint.manifest import Manifest, checkpoints, is_checkpoint, leads_nowhere, verify
from relaxcomm.checkpoint.plain_state import join
from relaxcomm.checkpoint.storage import METADATA, Reading
from relaxcomm.checkpoint.writing import skeleton_of
from relaxcomm.engine.attaching.consistency import sharing_errors
from relaxcomm.errors import ConfigError, worded
from relaxcomm.step.world import World

T = TypeVar("T")

_EVENT = "checkpoint.load()"


@dataclass(frozen=True)
class Whole:
    """A checkpoint that is as it was written.

    Args:
        folder: where it lies.
        damages: what is wrong with newer ones.
        world_size: number of ranks that saved it.
        states: of all of them, or of this rank alone, where there are as many now.
    """

    folder: Path
    damages: Sequence[str]
    world_size: int
    states: Sequence[dict[str, Any]]


def newest_whole(world: World, path: Path) -> Whole | None:
    """Read the newest checkpoint that is whole; every rank calls it.

    Args:
        world: the ranks.
        path: a folder of checkpoints, or one of them, which is then the only one that is read.

    Returns: None if there is none.

    Raises: ConfigError, on every rank, if none is whole: what is wrong with each.
    """
    with sharing_errors(world.transport, _EVENT) as told:
        try:
            told.mine = _newest_first(path) if world.process.rank == 0 else []
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    folders: list[Path] = told.everyone[0]
    damages: list[str] = []
    for folder in folders:
        try:
            manifest = _together(world, partial(_verified, folder, world))
            here = world.process
            ranks = [here.rank] if manifest.world_size == here.world_size else range(manifest.world_size)
            states = _together(world, partial(_read, folder, manifest, ranks))
            return Whole(folder, damages, manifest.world_size, states)
        except _Damaged as error:
            damages.append(str(error))
    if damages:
        raise _nothing_whole(path, folders, damages)
    return None


class _Damaged(Exception):
    """What is wrong with a checkpoint, the same on all ranks."""


def _together(world: World, read: Callable[[], T]) -> T:
    """What this rank reads.

    Raises: _Damaged, on every rank, if one could not.
    """
    found, damage = None, None
    try:
        found = read()
    except ConfigError as error:
        damage = str(error)
    told = world.gather_all(damage, _EVENT)
    if any(told):
        raise _Damaged("; ".join(dict.fromkeys(one for one in told if one)))
    assert found is not None
    return found


def _nothing_whole(path: Path, folders: Sequence[Path], damages: Sequence[str]) -> ConfigError:
    if folders == [path]:
        return ConfigError(f"{damages[0]}; load another checkpoint")
    wrong = "\n".join(f"{folder.name}: {damage}" for folder, damage in zip(folders, damages, strict=True))
    return ConfigError(
        f"none of the checkpoints in {path} is whole; bring back what is missing, or move them away to begin "
        f"anew:\n{wrong}"
    )


def _newest_first(path: Path) -> list[Path]:
    if is_checkpoint(path):
        return [path]
    if link := next(filter(leads_nowhere, (path, *path.parents)), None):
        raise FileNotFoundError(errno.ENOENT, f"{link} is a link, and {link.readlink()} is not there")
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return [one.folder for one in reversed(checkpoints(path))]


def _verified(folder: Path, world: World) -> Manifest:
    """The manifest of a checkpoint.

    Raises: ConfigError for what is damaged, as far as this rank looks: each has a share of the files.
    """
    manifest = Manifest.read(folder)
    verify(folder, sorted(manifest.files.items())[world.process.rank :: world.process.world_size])
    return manifest


def _read(folder: Path, manifest: Manifest, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """The states of some ranks; what they have in common is read once."""
    try:
        reading = Reading(folder, frozenset(manifest.files))
        held = {one: _decoded(reading, skeleton_of(one)) for one in ranks}
        wanted = {entry for _, names in held.values() for entry in names.values()}
        entries = reading.read(wanted.__contains__)
        return [
            {
                part: join(value, {path: entries[entry] for path, entry in names.items()})
                for part, value in plain.items()
            }
            for plain, names in held.values()
        ]
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror}") from None
    except Exception as error:  # the checksums are right, so somebody else has written it
        raise ConfigError(f"{folder / METADATA} is no checkpoint of relaxcomm: {worded(error)}") from None


def _decoded(reading: Reading, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A rank's state without tensors, and in which entries these are."""
    held = json.loads(reading.read(lambda entry: entry == name)[name].numpy().tobytes())
    return held["plain"], held["names"]
