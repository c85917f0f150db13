"""What every contender trains, with torch alone: a step of a fixed length on an accelerator of one's own.

The computing of a step is slept, as on a device beside the host: workers do not take each other's cores.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.faults.notes import Notes

BATCH_SIZE, WIDTH, DEPTH = 32, 256, 6
STEP_SECONDS = 0.05


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The same model everywhere, of 0.4 million parameters, and its optimizer."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.Tanh())))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss(model: torch.nn.Module, step: int, worker: int) -> torch.Tensor:
    """Of the batch that a worker has in a step."""
    draw = torch.Generator().manual_seed(1_000 * step + worker)
    x = torch.randn(BATCH_SIZE, WIDTH, generator=draw)
    time.sleep(STEP_SECONDS)
    return (model(x) - x.roll(1, dims=1)).square().mean()


def meet() -> None:
    """Meet those that begin with this worker in the launcher's store; who joins later asks to be let in."""
    if "RELAXCOMM_JOIN" in os.environ:
        return
    host, port = os.environ["GOODPUT_STORE"].split(":")
    store = dist.TCPStore(host, int(port), None, False)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def my_notes() -> Notes:
    """Of this worker, from its first process to its last: a line for every step that its model has taken."""
    return Notes(Path(os.environ["GOODPUT_NOTES"]))


def worker() -> int:
    """Which of the workers this is, whatever rank it has now."""
    return int(os.environ["GOODPUT_WORKER"])
