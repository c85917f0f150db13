"""One trial on one rank: train by a contender, and hold the model's state at every evaluation point.

The models are judged when the trial is over, so that an evaluation gives nobody time to communicate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.lab.contenders import Contender
from benchmarks.lab.links import Link
from benchmarks.lab.workloads import WORKLOADS, Batches, task_of
from relaxcomm.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Job:
    """One trial, as all ranks are told it.

    Args:
        workload: its name.
        contender: its name.
        settings: the contender's.
        learning_rate: of the task's optimizer.
        seed: of model, data and shuffles.
        steps: optimizer steps, or None for the workload's.
        every: optimizer steps between evaluations, or None for the workload's; 0 evaluates nothing.
        offset: steps after a multiple of `every` at which is evaluated, such as the delay of an average.
        options: further arguments of the task, such as a width.
    """

    workload: str
    contender: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float
    seed: int = 0
    steps: int | None = None
    every: int | None = None
    offset: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


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

    def judge(self) -> dict[int, dict[str, float]]:
        """This rank's share of the evaluation points: quality of the first rank's model and of the mean."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        every = [self._open(other) for other in range(ranks)]
        found = {}
        for index in range(rank, self.taken, ranks):
            rows = [one[index] for one in every]
            found[index] = {"own": self._quality(rows[0]), "mean": self._quality(torch.stack(rows).mean(0))}
        return found

    def _quality(self, values: Tensor) -> float:
        model = self._task.model
        state = model.state_dict()
        parts = values.split([state[name].numel() for name in self._names])
        with torch.no_grad():
            for name, part in zip(self._names, parts, strict=True):
                state[name].copy_(part.view_as(state[name]))
            model.eval()
            return self._task.evaluate(model)


def run(job: Job, folder: Path, link: Link) -> dict[str, Any]:
    """Run a trial on this rank, together with the others of the default process group.

    Returns: seconds and bytes sent by this host at each evaluation point and at the end, the qualities that
        this rank judged, step times, and what the contender says of its communication.
    """
    workload = WORKLOADS[job.workload]
    task = task_of(job.workload, job.seed, job.learning_rate, job.options)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    batches = iter(Batches(task, workload.batch_size, rank, ranks, job.seed))
    steps = job.steps or workload.steps
    every = workload.every if job.every is None else job.every
    snapshots = Snapshots(folder, task, (steps - job.offset) // every if every else 0)
    torch.manual_seed(1000 * job.seed + rank)  # every rank its own dropout
    contender = link.contenders[job.contender](task.model, task.optimizer, **job.settings)
    timed = _train(contender, task, batches, steps, (every, job.offset), snapshots, link.sent_bytes)
    timed |= {"communication": dict(contender.communication()), "note": contender.note()}
    contender.close()
    dist.barrier()
    return {**timed, "qualities": snapshots.judge()}


def _train(
    contender: Contender,
    task: Task,
    batches: Any,
    steps: int,
    when: tuple[int, int],
    snapshots: Snapshots,
    sent_bytes: Callable[[], int],
) -> dict[str, Any]:
    points, step_seconds = [], []
    every, offset = when
    task.model.train()
    dist.barrier()
    first_bytes, paused, cpu = sent_bytes(), 0.0, time.process_time()
    started = before = time.perf_counter()
    for step in range(1, steps + 1):
        task.loss(contender.model, next(batches)).backward()  # type: ignore[arg-type]
        contender.optimizer.step()
        contender.optimizer.zero_grad()
        contender.after_step()
        now = time.perf_counter()
        step_seconds.append(now - before)
        if every and step > offset and (step - offset) % every == 0:
            points.append((step, now - started - paused, sent_bytes() - first_bytes))
            snapshots.take()
            paused += time.perf_counter() - now
        before = time.perf_counter()
    seconds = before - started - paused
    return {
        "seconds": seconds,
        "bytes_sent": sent_bytes() - first_bytes,
        "cpu_seconds": time.process_time() - cpu,
        "step_seconds": step_seconds,
        "points": points,
    }
