"""How scripts begin whose ranks meet in a store of the test's own, which outlives each of them."""

from __future__ import annotations

import torch

MEET = """
import json, os, signal, sys, time, torch, relaxcomm

DEVICE = "cpu"
globals().update(json.loads(sys.argv[1]))
torch.set_num_threads(1)
if DEVICE == "cuda":
    from tests.network.pretended_nccl import train_on_a_gpu

    train_on_a_gpu()
joins, rank = "RELAXCOMM_JOIN" in os.environ, int(os.environ.get("RANK", -1))
if not joins:
    store = torch.distributed.TCPStore("127.0.0.1", PORT, None, False)
    torch.distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"])
    )

def end(after_seconds=0.0):
    time.sleep(after_seconds)  # in which the others come as far as they can without it
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""Has what the first argument names as JSON, PORT among them: ranks that meet, and how one ends."""

BEGIN = (
    MEET
    + """
torch.manual_seed(7 * joins)  # who joins has other parameters at first
sizes = [(20, 60), (60, 60), (60, 1)]
model = torch.nn.Sequential(*(layer for a, b in sizes for layer in (torch.nn.Linear(a, b), torch.nn.Tanh())))
model.to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
torch.manual_seed(1 + rank)

def total():
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum().item()
"""
)
"""The same with a small model, its optimizer, and the sum of what it holds."""


def kept_store() -> torch.distributed.TCPStore:
    """A store that is kept by the test's own process, as a launcher's is, as long as somebody has it."""
    return torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
