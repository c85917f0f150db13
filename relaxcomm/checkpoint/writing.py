"""Writes a checkpoint in a thread: beside its place, and moved there when every rank has written its part."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relaxcomm.checkpoint.manifest import (
    FORMAT,
    PARTIAL,
    File,
    Manifest,
    checkpoints,
    keep_newest,
    unfinished,
)
from relaxcomm.checkpoint.meeting import Meeting
from relaxcomm.checkpoint.storage import METADATA, Writing
from relaxcomm.errors import CheckpointError
from relaxcomm.network.transport import Membership
from relaxcomm.system.files import make_private_folder, sync_folder

_MEETING = "meeting"


@dataclass(frozen=True)
class Destination:
    """Where a checkpoint goes; the same on all ranks.

    Args:
        folder: when it is complete.
        number: how many there were before it.
        step: optimizer steps of the run.
        keep: how many checkpoints stay.
        partial: where it is written; no later one is written there.
    """

    folder: Path
    number: int
    step: int
    keep: int
    partial: Path


def prepare(path: Path, step: int, keep: int) -> Destination:
    """Choose the place of the next checkpoint; rank 0 does so."""
    before = [one.manifest.number for one in checkpoints(path) if one.manifest is not None]
    names = {one.name for one in path.iterdir()} if path.is_dir() else set()
    name = base = f"step-{step:08d}"
    again = 1
    while name in names:  # saved before: a run that went back has come to the same step
        again += 1
        name = f"{base}-{again}"
    partial = path / f"{name}.{secrets.token_hex(4)}{PARTIAL}"
    return Destination(path / name, max(before, default=-1) + 1, step, keep, partial)


def clear_away(destination: Destination) -> None:
    """Delete what was never finished beside it; rank 0 does so when it has met the others.

    Before, it may be one that was away, while those who went on without it write another one.
    """
    for left in unfinished(destination.folder.parent):
        if left != destination.partial:
            shutil.rmtree(left, ignore_errors=True)


class Write:
    """This rank's part of a checkpoint on its way to the disk.

    Args:
        destination: where it goes.
        plain: of the state, see `plain_state.split`.
        tensors: of the state, which nobody changes any more.
        process: this one among all.
        timeout_seconds: the longest wait for another rank.
    """

    def __init__(
        self,
        destination: Destination,
        plain: Any,
        tensors: Mapping[str, Tensor],
        process: Membership,
        timeout_seconds: float,
    ) -> None:
        self.destination = destination
        self._plain, self._tensors = plain, tensors
        self._rank, self._size = process.rank, process.world_size
        self._meeting = Meeting(destination.partial / _MEETING, self._rank, self._size, timeout_seconds)
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="relaxcomm-checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> Exception | None:
        """Wait until this rank has done its part; why it could not, or None."""
        self._thread.join()
        return self._problem

    def give_up(self) -> bool:
        """Wait for no other rank; whether it is complete, which all that ask are told alike."""
        self._meeting.leave()
        self._thread.join()
        partial = self.destination.partial
        # A name of its own: another rank may have been here, and a third one's thread begun only then.
        left = partial.with_name(f"left-{secrets.token_hex(4)}-{partial.name}")
        with suppress(FileNotFoundError):  # it was moved to its place, or another rank was here
            partial.rename(left)
        return self.destination.folder.exists()

    def discard(self) -> None:
        """Free what was written of it, which may have filled the disk."""
        shutil.rmtree(self.destination.partial, ignore_errors=True)

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:
            reason = error if isinstance(error, CheckpointError) else _disk_error(error)
            self._problem = error
            if reason is not None:
                self._problem = CheckpointError(
                    f"the checkpoint {self.destination.folder} was not written: {reason}; older ones are "
                    "untouched"
                )
            with suppress(OSError):  # the others notice in the end
                self._meeting.fail()
        finally:
            self._plain, self._tensors = None, {}

    def _write(self) -> None:
        partial, meeting = self.destination.partial, self._meeting
        make_private_folder(partial)
        (partial / _MEETING).mkdir(exist_ok=True)
        meeting.tell("content", json.dumps(_content(self._tensors)).encode())
        content = [json.loads(one) for one in meeting.hear("content")]
        names, mine = _share_out(content, self._rank)
        entries = {names[path]: self._tensors[path] for path in mine}
        skeleton = json.dumps({"plain": self._plain, "names": names}).encode()
        entries[skeleton_of(self._rank)] = torch.frombuffer(bytearray(skeleton), dtype=torch.uint8)
        writing = Writing(partial, entries, self._rank)
        meeting.tell("plan", writing.plan())
        results = writing.write(meeting.hear("plan"))
        files = {one.name: File.of(one).model_dump() for one in partial.glob(f"__{self._rank}_*")}
        meeting.tell("files", json.dumps(files).encode())
        meeting.tell("results", results)
        if self._rank == 0:
            self._finish(writing)

    def _finish(self, writing: Writing) -> None:
        """Write what holds the parts together, and move all to its place; then the oldest may go."""
        destination, meeting = self.destination, self._meeting
        files = [json.loads(one) for one in meeting.hear("files")]
        writing.finish(meeting.hear("results"))
        shutil.rmtree(destination.partial / _MEETING)
        known = {name: File(**one) for theirs in files for name, one in theirs.items()}
        known[METADATA] = File.of(destination.partial / METADATA)
        number, step = destination.number, destination.step
        Manifest(format=FORMAT, number=number, step=step, world_size=self._size, files=known).write(
            destination.partial
        )
        destination.partial.rename(destination.folder)
        sync_folder(destination.folder.parent)
        keep_newest(destination.folder.parent, destination.keep)


def _disk_error(error: BaseException | None) -> OSError | None:
    """What the disk has said, which torch may follow with an error of its own."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def skeleton_of(rank: int) -> str:
    """The name of the entry that holds a rank's state without its tensors."""
    return f"rank_{rank}"


def _content(tensors: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """What every tensor holds, in short: its size, and a checksum of kind and content."""
    found = {}
    for path, tensor in tensors.items():
        digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
        flat = tensor.contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        found[path] = [tensor.nbytes, digest.hexdigest()]
    return found


def _share_out(content: Sequence[Mapping[str, Sequence[Any]]], rank: int) -> tuple[dict[str, str], list[str]]:
    """What is equal on all ranks is written by one of them, each in turn the one with the least so far.

    Args:
        content: of every rank.
        rank: of this one.

    Returns: the name in the checkpoint of each of this rank's tensors, and those that it writes.
    """
    common = {
        path for path, mine in content[0].items() if all(theirs.get(path) == mine for theirs in content)
    }
    load = [sum(size for path, (size, _) in theirs.items() if path not in common) for theirs in content]
    mine = [path for path in content[rank] if path not in common]
    for path in sorted(common, key=lambda path: (-content[0][path][0], path)):
        writer = load.index(min(load))
        load[writer] += content[0][path][0]
        if writer == rank:
            mine.append(path)
    return {path: path if path in common else f"rank_{rank}.{path}" for path in content[rank]}, mine
