"""Checkpoints now and then, written while training goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from weakref import ref

from relaxcomm.checkpoint.saving import Saving, load
from relaxcomm.config import CheckpointConfig
from relaxcomm.engine import Engine
from relaxcomm.engine.run_state import Stateful
from relaxcomm.errors import CheckpointError
from relaxcomm.step.world import World
from relaxcomm.system.telling import tell

_FIRST_LOOK_STEPS = 10  # after which a rank 0 knows how long steps take


class Checkpoints:
    """Goes on from the newest checkpoint of a folder, and adds to it.

    The state is copied between two steps, and written by a thread; the next checkpoint waits for it. One that
    fails (a full disk) is told of, and training goes on; a model that is not finite ends the run. With
    `every_seconds` rank 0 decides: whenever it may be time, all ranks hear how many steps they have until
    then. One that was under way when ranks were lost is made anew by those that are left, who meet for that
    after the first step that they make together.

    Args:
        engine: of the run.
        settings: where and how often.
        others: what else has a state, by name.
    """

    def __init__(self, engine: Engine, settings: CheckpointConfig, others: Mapping[str, Stateful]) -> None:
        self._engine, self._settings, self._others = engine, settings, dict(others)
        self._saving = Saving(engine, Path(settings.path), settings.keep, self._others)
        self._due = 0
        self._world: ref[World] | None = None  # in which all have looked, also those who have joined
        self._begin_interval(engine.statistics.steps)

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one; every rank calls it."""
        folder = load(self._engine, self._settings.path, **self._others)
        if folder is not None and self._engine.world.process.rank == 0:
            tell(f"goes on from {folder}")
        self._begin_interval(self._engine.statistics.steps)

    def step(self) -> None:
        """A step has ended: save if it is time; every rank calls it after the same steps."""
        if self._engine.is_behind:  # the others wait for it, at the step to which they have come
            return
        if self._engine.statistics.steps >= self._due or self._is_among_others:
            self._engine.together(lambda: self._save_if_due(self._engine.statistics.steps))

    def round(self) -> None:
        """A round has ended, in which ranks make different numbers of steps: those of rank 0 count."""
        self._engine.together(lambda: self._save_if_due(self._steps_of_rank_0()))

    def save(self) -> None:
        """Begin a checkpoint when the last one is written; its cost to the loop is `checkpoint_seconds`."""
        began = time.perf_counter()
        for act in (self._saving.settle, self._saving.begin):
            try:
                act()
            except CheckpointError as error:
                if self._engine.world.process.rank == 0:
                    tell(f"{error}; training goes on")
        self._engine.observe(checkpoint_seconds=time.perf_counter() - began)

    def finish(self) -> None:
        """Wait for the last one; every rank calls it.

        Raises: CheckpointError, on every rank, if it could not be written.
        """
        self._engine.together(self._finish)

    def _finish(self) -> None:
        if self._is_among_others and self._must_save_again():
            self._saving.save()
        self._saving.settle()

    def _save_if_due(self, steps: int) -> None:
        again = self._is_among_others and self._must_save_again()
        if again or (steps >= self._due and self._is_time(steps)):
            self.save()
            self._begin_interval(steps)

    @property
    def _is_among_others(self) -> bool:
        """Whether ranks were lost, or have joined, since the last look."""
        return self._world is None or self._world() is not self._engine.world

    def _must_save_again(self) -> bool:
        """Whether a checkpoint was given up when ranks were lost; from now on all are due alike."""
        world = self._engine.world
        looks = world.gather_all((self._saving.is_given_up(), self._due), "a look at the last checkpoint")
        given_up, due = zip(*looks, strict=True)
        self._due, self._world = min(due), ref(world)
        return any(given_up)

    def _steps_of_rank_0(self) -> int:
        return self._engine.world.gather_all(self._engine.statistics.steps, "the end of a round")[0]

    def _begin_interval(self, steps: int) -> None:
        self._saved_at, self._saved_step = time.monotonic(), steps
        every = self._settings.every_steps
        self._due = steps + _FIRST_LOOK_STEPS if every is None else (steps // every + 1) * every

    def _is_time(self, steps: int) -> bool:
        """Whether it is, where rank 0 decides; else all know when to ask it again."""
        every = self._settings.every_seconds
        if every is None:
            return True
        passed = time.monotonic() - self._saved_at
        a_step = passed / max(1, steps - self._saved_step)
        (left, *_) = self._engine.world.gather_all(int((every - passed) / a_step), "a look at the clock")
        self._due = steps + max(1, left)
        return left < 1
