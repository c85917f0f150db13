"""What models were at the evaluation points of a trial, and how good they were, judged when it is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from relaxcomm import Task

_WHOSE = ("own", "mean")
Quality: TypeAlias = dict[str, float]


def _shared(found: dict[int, Quality]) -> dict[int, Quality]:
    """What all ranks have found."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    return {index: quality for one in every for index, quality in one.items()}


class Snapshots:
    """The model's floating-point state at each evaluation point, where all ranks can read it.

    Args:
        folder: on a file system that the ranks share, best in memory.
        task: whose model.
        count: number of evaluation points.
    """

    def __init__(self, folder: Path, task: Task, count: int) -> None:
        self._folder, self._task, self._count = folder, task, count
        state = task.model.state_dict()
        self._names = [name for name, value in state.items() if value.is_floating_point()]
        self._width = sum(state[name].numel() for name in self._names)
        self._own = self._open(dist.get_rank())
        self._own.zero_()  # or the kernel finds its pages in the middle of training, and others wait
        self.taken = 0

    def _open(self, rank: int) -> Tensor:
        size = max(1, self._count * self._width)
        path = str(self._folder / f"{rank}.snapshots")
        return torch.from_file(path, shared=True, size=size)[: self._count * self._width].view(
            self._count, self._width
        )

    def take(self) -> None:
        """Keep the present state."""
        state = self._task.model.state_dict()
        torch.cat([state[name].flatten() for name in self._names], out=self._own[self.taken])
        self.taken += 1

    def judge(self, good_enough: Callable[[Sequence[float]], bool]) -> dict[int, Quality]:
        """The quality at each evaluation point, ranks taking turns, until it is known when it is reached.

        What comes after that is left out, but for the last point.
        """
        rank, ranks = dist.get_rank(), dist.get_world_size()
        every = [self._open(other) for other in range(ranks)]
        found: dict[int, Quality] = {}

        def judged(points: range) -> dict[int, Quality]:
            mine = [index for index in points if index % ranks == rank and index not in found]
            return _shared({index: self._qualities(every, index) for index in mine})

        points = range(self.taken)
        for first in points[::ranks]:
            found |= judged(points[first : first + ranks])
            if all(good_enough([found[index][whose] for index in sorted(found)]) for whose in _WHOSE):
                break
        return found | judged(points[-1:])

    def _qualities(self, every: Sequence[Tensor], index: int) -> Quality:
        """Of the first rank's model and of the mean, which may be the same."""
        rows = [one[index] for one in every]
        own = self._quality(rows[0])
        if all(row.equal(rows[0]) for row in rows):
            return {"own": own, "mean": own}
        return {"own": own, "mean": self._quality(torch.stack(rows).mean(0))}

    def _quality(self, values: Tensor) -> float:
        model = self._task.model
        state = model.state_dict()
        parts = values.split([state[name].numel() for name in self._names])
        with torch.no_grad():
            for name, part in zip(self._names, parts, strict=True):
                state[name].copy_(part.view_as(state[name]))
            model.eval()
            return self._task.evaluate(model)
