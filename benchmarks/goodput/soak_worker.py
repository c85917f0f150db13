"""A worker of the soak: trains on digits until it is told to end, and notes what it takes of the machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import torch

import relaxcomm
from benchmarks.goodput.workload import meet, my_notes, worker
from relaxcomm.tasks import digits

_LOOK_STEPS, _BATCH_SIZE, _TIMEOUT_SECONDS = 50, 32, 40
_PACE_SECONDS = 0.02  # so that an hour is no race


def main() -> None:
    torch.set_num_threads(1)
    task = digits.make(0, hidden=(64, 64), dropout=0.0)
    torch.manual_seed(1 + worker())
    meet()
    notes, process, end = my_notes(), psutil.Process(), Path(os.environ["GOODPUT_FOLDER"]) / "end"
    config = {
        "algorithm": "bsp",
        "bucket_bytes": 16_000,
        "membership": {"elastic": True},
        "timeout_seconds": _TIMEOUT_SECONDS,
        "drift_guard": {"every_steps": 20},
    }
    images, digit = task.train_data.tensors
    last = None
    with relaxcomm.attach(task.model, task.optimizer, config) as engine:
        while last is None or engine.step < last:
            if last is None and end.exists():
                last = int(end.read_text())
            chosen = torch.randint(len(images), (_BATCH_SIZE,))
            time.sleep(_PACE_SECONDS)
            task.optimizer.zero_grad()
            task.loss(task.model, [images[chosen], digit[chosen]]).backward()
            task.optimizer.step()
            if engine.step % _LOOK_STEPS == 0:
                notes.add(
                    "step",
                    step=engine.step,
                    accuracy=task.evaluate(task.model),
                    ranks=engine.world.size,
                    process=process.pid,
                    resident_bytes=process.memory_info().rss,
                    descriptors=process.num_fds(),
                    threads=process.num_threads(),
                )
    flat = torch.cat([p.detach().flatten() for p in task.model.parameters()])
    notes.add("done", sum=flat.double().sum().item())


if __name__ == "__main__":
    main()
