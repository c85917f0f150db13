"""What the threads that write a checkpoint tell each other, through the folder that they write to."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from relaxcomm.errors import CheckpointError

_DONE, _FAILED = ".told", ".failed"
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.001, 0.1


class Meeting:
    """All ranks' messages lie in one folder; no network is used, so that the training loop has it to itself.

    Args:
        folder: which all ranks see.
        rank: of this one.
        size: number of ranks.
        timeout_seconds: the longest wait for another.
    """

    def __init__(self, folder: Path, rank: int, size: int, timeout_seconds: float) -> None:
        self._folder, self._rank, self._size = folder, rank, size
        self._timeout = timeout_seconds
        self._left = threading.Event()

    def tell(self, subject: str, message: bytes) -> None:
        """Leave a message for the others.

        Raises: CheckpointError if somebody has deleted the folder.
        """
        file = self._file(subject, self._rank)
        try:
            file.with_suffix(".new").write_bytes(message)
            file.with_suffix(".new").rename(file.with_suffix(_DONE))
        except FileNotFoundError:
            raise self._deleted() from None

    def fail(self) -> None:
        """Tell the others to wait no more; a full disk still takes an empty file."""
        self._file("", self._rank).with_suffix(_FAILED).touch()

    def leave(self) -> None:
        """Wait for nobody any more; another thread calls it."""
        self._left.set()

    def hear(self, subject: str) -> list[bytes]:
        """Every rank's message, in rank order.

        Raises: CheckpointError if another has failed or says nothing in time, if somebody has deleted the
            folder, or after `leave`.
        """
        deadline = time.monotonic() + self._timeout
        return [self._wait_for(subject, rank, deadline) for rank in range(self._size)]

    def _wait_for(self, subject: str, rank: int, deadline: float) -> bytes:
        pause = _SHORTEST_SECONDS
        message = self._file(subject, rank).with_suffix(_DONE)
        while not message.exists():
            failed = [one for one in range(self._size) if self._file("", one).with_suffix(_FAILED).exists()]
            if failed:
                raise CheckpointError(f"rank {failed[0]} could not write its part")
            if self._left.is_set():
                raise CheckpointError("it was given up")
            if not self._folder.exists():
                raise self._deleted()
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"rank {rank} has not written its part of {self._folder.parent} after "
                    f"{self._timeout:g} s (timeout_seconds); is it the same folder on all hosts?"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_SECONDS)
        return message.read_bytes()

    def _deleted(self) -> CheckpointError:
        partial = self._folder.parent
        return CheckpointError(
            f"{partial} was deleted meanwhile; does another run save in {partial.parent}? Give each its own"
        )

    def _file(self, subject: str, rank: int) -> Path:
        return self._folder / f"{subject}-{rank}"
