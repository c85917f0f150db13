"""A run of a script that workers may join."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.faults.small_script import kept_store
from tests.ranks import Finished, start_script

LIMIT_SECONDS = 240  # alone 20; one that joins starts a minute late on a busy machine


class Job:
    """An elastic run, whose store is in the test's own process, as a launcher's is.

    Args:
        script: that begins as `small_script` has it.
        size: how many ranks there are at first.
        settings: what the script has beside PORT.
    """

    def __init__(self, script: str, size: int, **settings: object) -> None:
        self.store = kept_store()
        self.address = f"127.0.0.1:{self.store.port}"
        self._script, self._arguments = script, [json.dumps({"PORT": self.store.port, **settings})]
        self._folder, self._names = TemporaryDirectory(), itertools.count()
        self._deadline = time.monotonic() + LIMIT_SECONDS
        self.ranks = [self._start({"RANK": str(rank), "WORLD_SIZE": str(size)}) for rank in range(size)]

    def _start(self, environment: dict[str, str]) -> Rank:
        place = f"{self._folder.name}/{next(self._names)}"
        return Rank(self._script, self._arguments, environment, place)

    def join(self, **more: str) -> None:
        """Start one more, which joins the others."""
        self.ranks.append(self._start({"RELAXCOMM_JOIN": self.address, **more}))

    def end(self, *, killed: int | None = None) -> tuple[list[dict[str, Any]], str]:
        """What all but one that is killed print, and what all of them say on their way."""
        done = [rank.finish(self._deadline) for rank in self.ranks]
        self._folder.cleanup()
        errors = "\n".join(one.stderr for one in done)
        left = [one for index, one in enumerate(done) if index != killed]
        assert [one.returncode for one in left] == [0] * len(left), errors
        assert "terminate called" not in errors
        found = [json.loads(one.stdout) for one in left]
        assert len({one["sum"] for one in found}) == 1, "close() ends with the same model everywhere"
        assert all(one["last"] < 0.5 * one["first"] for one in found), found
        return found, errors


class Rank:
    """A process of a job."""

    def __init__(self, script: str, arguments: list[str], environment: dict[str, str], place: str) -> None:
        self._place = place
        self.process = start_script(script, arguments, environment, place)

    def finish(self, deadline: float) -> Finished:
        """What it leaves behind; it is killed if it has not ended in time."""
        self.process.join(max(0.0, deadline - time.monotonic()))
        self.process.kill()
        self.process.join()
        out, err = (Path(f"{self._place}.{end}").read_text() for end in ("out", "err"))
        return Finished(self.process.exitcode, out, err)
