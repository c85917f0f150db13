"""A run of a script that workers may join."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import Any

from tests.faults.small_script import kept_store

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
        self._command = [sys.executable, "-c", script, json.dumps({"PORT": self.store.port, **settings})]
        self.ranks = [self._start({"RANK": str(rank), "WORLD_SIZE": str(size)}) for rank in range(size)]
        self._hanging = Timer(LIMIT_SECONDS, lambda: [rank.kill() for rank in self.ranks])
        self._hanging.daemon = True
        self._hanging.start()

    def _start(self, more: dict[str, str]) -> subprocess.Popen[str]:
        env = {**os.environ, **more, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(self._command, env=env, stdout=pipe, stderr=pipe, text=True)

    def join(self, **more: str) -> None:
        """Start one more, which joins the others."""
        self.ranks.append(self._start({"RELAXCOMM_JOIN": self.address, **more}))

    def end(self, *, killed: int | None = None) -> tuple[list[dict[str, Any]], str]:
        """What all but one that is killed print, and what all of them say on their way."""
        with ThreadPoolExecutor() as pool:  # what is not read holds its process up
            said = list(pool.map(lambda rank: rank.communicate(), self.ranks))
        self._hanging.cancel()
        errors = "\n".join(error for _, error in said)
        ended = [rank.returncode for index, rank in enumerate(self.ranks) if index != killed]
        assert ended == [0] * len(ended), errors
        assert "terminate called" not in errors
        found = [json.loads(out) for index, (out, _) in enumerate(said) if index != killed]
        assert len({one["sum"] for one in found}) == 1, "close() ends with the same model everywhere"
        assert all(one["last"] < 0.5 * one["first"] for one in found), found
        return found, errors
