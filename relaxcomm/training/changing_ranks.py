"""A training run in which ranks are lost and join: what is noted of it, and what newcomers are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from relaxcomm.engine import Engine
from relaxcomm.engine.run_state import Stateful
from relaxcomm.training.results import Change
from relaxcomm.training.run_progress import RunProgress

T = TypeVar("T")


class ChangingRanks:
    """Follows which ranks train.

    Args:
        engine: of the run.
        progress: of the run.
        others: what those who join go on from beside the engine, by name; progress among them.
    """

    def __init__(self, engine: Engine, progress: RunProgress, others: Mapping[str, Stateful]) -> None:
        self._engine, self._progress, self._others = engine, progress, others
        self.changes: list[Change] = []
        self._note()

    @property
    def worker(self) -> int:
        """The number of this rank, which is nobody else's in the whole run."""
        return self.generation.workers[self.rank]

    def follow(self) -> bool:
        """Take note of ranks that are lost or have joined; whether there were any."""
        before, now, progress = self.generation, self._engine.generation, self._progress
        if now.number == before.number:
            return False
        worker = self.worker
        self._note()
        share = len(before.workers) / len(now.workers)
        progress.steps = progress.step + round((progress.steps - progress.step) * share)
        lost = {one: now.lost.get(one, "was lost") for one in before.workers if one not in now.workers}
        joined = tuple(one for one in now.workers if one not in before.workers)
        change = Change(now.number, progress.step, progress.seconds, len(now.workers), lost, joined)
        if lost or joined:  # else who has asked has ended before it joined
            self.changes.append(change)
        if joined:
            self._tell_those_who_join(self._standing() if self.worker == worker else None)
        return True

    def take_part(self) -> None:
        """Go on from what the others tell who have admitted this rank, for the first time or again."""
        self._note()
        self._tell_those_who_join(None)

    def gather(self, value: T, event: str) -> list[T]:
        """A value of every rank, in rank order; of those that are left, where some are lost meanwhile."""
        return self._engine.together(lambda: self._engine.world.gather(value, event))

    def _note(self) -> None:
        self.rank, self.generation = self._engine.world.rank, self._engine.generation

    def _standing(self) -> dict[str, Any]:
        """What a rank must know that joins."""
        others = {name: other.state_dict() for name, other in self._others.items()}
        return {"others": others, "changes": self.changes, "steps": self._progress.steps}

    def _tell_those_who_join(self, mine: dict[str, Any] | None) -> None:
        """Let ranks that have joined go on from what another knows; those have nothing to tell."""
        told = next(filter(None, self.gather(mine, "the beginning of a generation")), None)
        if mine is not None or told is None:
            return
        for name, other in self._others.items():
            other.load_state_dict(told["others"][name])
        self._progress.forget_bytes()
        self.changes, self._progress.steps = list(told["changes"]), told["steps"]
