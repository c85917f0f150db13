"""A worker of DistributedDataParallel: torchrun starts all of them again, from a checkpoint."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.faults.notes import Notes
from benchmarks.goodput.workload import loss, make

SAVE_SECONDS = 5.0
"""From one checkpoint to the next."""


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank, folder = dist.get_rank(), Path(os.environ["GOODPUT_FOLDER"])
    model, optimizer = make()
    saved, step = folder / "checkpoint.pt", 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    wrapped = DistributedDataParallel(model)
    notes, since = Notes(folder / f"{rank}.notes"), time.monotonic()
    notes.add("process", number=os.getpid())
    while True:
        optimizer.zero_grad()
        value = loss(wrapped, step, rank)
        value.backward()
        optimizer.step()
        notes.add("step", step=step, loss=value.item())
        step += 1
        if rank == 0 and time.monotonic() - since >= SAVE_SECONDS:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(parts, saved.with_suffix(".part"))
            os.replace(saved.with_suffix(".part"), saved)
            since = time.monotonic()


if __name__ == "__main__":
    main()
