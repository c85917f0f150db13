"""One contender that trains the language model, on every rank."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.lab.contenders import Contender, Relaxcomm
from benchmarks.lab.rivals import RIVALS
from relaxcomm.tasks import charlm
from relaxcomm.tasks.task import Task

_HEAD_WIDTH = 64
_LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is trained, and how long.

    Args:
        width, layers, context: of the transformer.
        batch: rows of a rank in a step.
        steps: optimizer steps.
        period: after how many steps the model is judged.
        learning_rate: of AdamW.
    """

    width: int
    layers: int
    context: int
    batch: int
    steps: int
    period: int
    learning_rate: float

    def task(self, num_ranks: int) -> Task:
        """The model, its text and its measure; the same on every rank."""
        return charlm.make(
            0,
            learning_rate=self.learning_rate,
            context=self.context,
            width=self.width,
            layers=self.layers,
            heads=max(1, self.width // _HEAD_WIDTH),
            samples=self.steps * self.batch * num_ranks,
        )


def train(
    rank: int, device: torch.device, name: str, settings: dict[str, Any], trial: Trial, seconds: float
) -> dict[str, Any]:
    """Train with one contender.

    Args:
        name: of the lab's rival, or of an algorithm.
        settings: which it is made with.
        trial: what is trained.
        seconds: after which it stops early, at the next step in which it is judged.

    Returns: the curve on held-out text, and means of a step.
    """
    size = dist.get_world_size()
    task = trial.task(size)
    task.model.to(device)
    make = RIVALS.get(name, Relaxcomm)
    contender = make(task.model, task.optimizer, **settings)
    curve: list[dict[str, float]] = []
    spent, sent = 0.0, 0
    begun = time.monotonic()
    batches = batches_of(task, trial, rank, size, device)
    for step in range(0, trial.steps, trial.period):
        count = min(trial.period, trial.steps - step)
        taken, bytes_sent = _train_for(count, contender, task, batches, device)
        spent, sent = spent + taken, sent + bytes_sent
        tokens = (step + count) * trial.batch * trial.context * size
        curve.append({"tokens": tokens, "seconds": spent, "bits_per_character": judged(task, device)})
        if not _go_on(time.monotonic() - begun < seconds):
            break
    contender.close()
    done = curve[-1]["tokens"] / (trial.batch * trial.context * size)
    return {
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "tokens_a_second": _speed(curve),
        "bytes_a_step": sent / done,
        "steps": done,
        "note": contender.note(),
        "curve": curve,
    }


def _speed(curve: list[dict[str, float]]) -> float:
    """Tokens a second behind the first point, before which is what is done once: compiling, connecting."""
    first, last = curve[0], curve[-1]
    if len(curve) == 1:
        return last["tokens"] / last["seconds"]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])


def batches_of(task: Task, trial: Trial, rank: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """This rank's batches, `[batch, context + 1]`, of which all together are the whole text once."""
    rows = range(rank * trial.batch, trial.steps * trial.batch * size, trial.batch * size)
    mine = [torch.stack([task.train_data[i] for i in range(row, row + trial.batch)]) for row in rows]
    return iter([one.to(device) for one in mine])


def _train_for(
    steps: int, contender: Contender, task: Task, batches: Iterator[Tensor], device: torch.device
) -> tuple[float, int]:
    """Seconds that so many steps take, and bytes that went over the loopback interface meanwhile."""
    dist.all_reduce(torch.zeros(1))  # all begin together
    before, begin = int(_LOOPBACK.read_text()), time.perf_counter()
    for _ in range(steps):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = task.loss(contender.model, next(batches))
        loss.backward()
        contender.optimizer.step()
        contender.optimizer.zero_grad()
        contender.after_step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.all_reduce(torch.zeros(1))  # the slowest one counts
    return time.perf_counter() - begin, int(_LOOPBACK.read_text()) - before


def judged(task: Task, device: torch.device) -> float:
    """The measure on text that was held out, of this rank's own model."""
    task.model.eval()
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        found = task.evaluate(task.model)
    task.model.train()
    return float(found)


def _go_on(mine: bool) -> bool:
    """What rank 0 says."""
    told = torch.tensor([float(mine)])
    dist.broadcast(told, 0)
    return bool(told.item())
