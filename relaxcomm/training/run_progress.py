"""How far a training run has come: what a checkpoint keeps of it beside the model and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from relaxcomm.errors import ConfigError
from relaxcomm.training.results import Point
from relaxcomm.training.stopwatch import Stopwatch


class RunProgress:
    """The steps, the training time and the evaluations of a run until now.

    Args:
        clock: of the training time.
        seed: of the task, which says what is held out and in which order the rest is read.
        workers: number of ranks.
    """

    def __init__(self, clock: Stopwatch, seed: int, workers: int) -> None:
        self._clock, self._seed, self._workers = clock, seed, workers
        self.step = 0
        self.steps = 0
        """How many the run will have."""
        self.history: list[Point] = []

    @property
    def seconds(self) -> float:
        """Training time so far, without evaluations."""
        return self._clock.seconds

    def forget_bytes(self) -> None:
        """What was sent until now was sent by others."""
        self.history = [replace(point, bytes_sent=0) for point in self.history]

    def state_dict(self) -> dict[str, Any]:
        """What a result tells of the run so far."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "seed": self._seed,
            "history": [list(astuple(point)) for point in self.history],
        }

    def carry_state_dicts(self, state_dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What any number of ranks go on from: the times of the one that came farthest, the bytes of all."""
        farthest = max(state_dicts, key=lambda state: int(state["step"]))
        histories = [[Point(*one) for one in state["history"]] for state in state_dicts]
        kept = [Point(*one) for one in farthest["history"]]
        for index, point in enumerate(kept):
            sent = sum(one[index].bytes_sent for one in histories if index < len(one))
            kept[index] = replace(point, bytes_sent=sent // self._workers)
        return {**farthest, "history": [list(astuple(point)) for point in kept]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from it.

        Raises: ConfigError for that of a run with another seed.
        """
        seed = state_dict.get("seed", self._seed)
        if seed != self._seed:
            raise ConfigError(
                f"the checkpoint is of a run with seed {seed}, and this one has {self._seed}: other samples "
                f"would be held out, and what was trained on would be evaluated; set seed: {seed}, or give "
                "another checkpoint.path"
            )
        self.step = state_dict["step"]
        self._clock.go_on_from(state_dict["seconds"])
        self.history = [Point(*one) for one in state_dict["history"]]
