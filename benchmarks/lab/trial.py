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

from benchmarks.lab.contenders import Contender
from benchmarks.lab.links import Link
from benchmarks.lab.quality import holds_from
from benchmarks.lab.snapshots import Snapshots
from benchmarks.lab.workloads import WORKLOADS, Batches, task_of
from relaxcomm import Task


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


def run(job: Job, folder: Path, link: Link) -> dict[str, Any]:
    """Run a trial on this rank, together with the others of the default process group.

    Returns: seconds and bytes sent by this host at each evaluation point and at the end, the qualities that
        were judged, step times, and what the contender says of its communication.
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
    judged = snapshots.judge(
        lambda qualities: holds_from(qualities, workload.target, workload.higher_is_better) is not None
    )
    return {**timed, "qualities": judged}


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
