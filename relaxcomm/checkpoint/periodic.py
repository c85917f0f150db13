"""Checkpoints now and then, written while training goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from relaxcomm.checkpoint.saving import begin, load, settle
from relaxcomm.checkpoint.writing import Write
from relaxcomm.config import CheckpointConfig
from relaxcomm.engine import Engine
from relaxcomm.engine.run_state import Stateful
from relaxcomm.errors import RelaxcommError

_FIRST_LOOK_STEPS = 10  # after which a rank 0 knows how long steps take


class Checkpoints:
    """Goes on from the newest checkpoint of a folder, and adds to it.

    The state is copied between two steps, and written by a thread; the next checkpoint waits for it. One that
    fails (a full disk) is told of, and training goes on. With `every_seconds` rank 0 decides: whenever it may
    be time, all ranks hear how many steps they have until then.

    Args:
        engine: of the run.
        settings: where and how often.
        others: what else has a state, by name.
    """

    def __init__(self, engine: Engine, settings: CheckpointConfig, others: Mapping[str, Stateful]) -> None:
        self._engine, self._settings, self._others = engine, settings, dict(others)
        self._write: Write | None = None
        self._saved_at, self._saved_step = time.monotonic(), 0
        self._due = settings.every_steps or _FIRST_LOOK_STEPS

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one; every rank calls it."""
        folder = load(self._engine, self._settings.path, **self._others)
        if folder is not None and self._engine.world.rank == 0:
            print(f"relaxcomm: goes on from {folder}", file=sys.stderr, flush=True)
        self._begin_interval(int(self._engine.statistics["steps"]))

    def step(self, steps: int) -> None:
        """A step has ended: save if it is time; every rank calls it after the same number of steps.

        Args:
            steps: how many have ended in the run.
        """
        if steps < self._due:
            return
        if self._settings.every_steps is None and not self._is_time(steps):
            return
        self.save()
        self._begin_interval(steps)

    def round(self) -> None:
        """A round has ended, in which ranks make different numbers of steps: those of rank 0 count."""
        (steps, *_) = self._engine.world.gather(int(self._engine.statistics["steps"]), "the end of a round")
        assert isinstance(steps, int)
        self.step(steps)

    def save(self) -> None:
        """Begin a checkpoint when the last one is written; its cost to the loop is `checkpoint_seconds`."""
        began = time.perf_counter()
        before, self._write = self._write, None
        try:
            if before is not None:
                settle(self._engine, before)
        except RelaxcommError as error:
            self._tell(error)
        try:
            path = Path(self._settings.path)
            self._write = begin(self._engine, path, self._settings.keep, self._others)
        except RelaxcommError as error:
            self._tell(error)
        self._engine.observe(checkpoint_seconds=time.perf_counter() - began)

    def finish(self) -> None:
        """Wait for the last one; every rank calls it.

        Raises: RelaxcommError, on every rank, if it could not be written.
        """
        if self._write is not None:
            settle(self._engine, self._write)
            self._write = None

    def _begin_interval(self, steps: int) -> None:
        self._saved_at, self._saved_step = time.monotonic(), steps
        every = self._settings.every_steps
        self._due = steps + _FIRST_LOOK_STEPS if every is None else (steps // every + 1) * every

    def _is_time(self, steps: int) -> bool:
        """Whether rank 0 says that it is time; else all know when to ask it again."""
        every = self._settings.every_seconds
        assert every is not None
        passed = time.monotonic() - self._saved_at
        a_step = passed / max(1, steps - self._saved_step)
        (left, *_) = self._engine.world.gather(int((every - passed) / a_step), "a look at the clock")
        assert isinstance(left, int)
        self._due = steps + max(1, left)
        return left < 1

    def _tell(self, error: RelaxcommError) -> None:
        """Say that a checkpoint was not written; anything else, such as a rank that is gone, ends the run."""
        if type(error) is not RelaxcommError:
            raise error
        if self._engine.world.rank == 0:
            print(f"relaxcomm: {error}; training goes on", file=sys.stderr, flush=True)
