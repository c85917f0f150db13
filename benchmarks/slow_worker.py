"""One worker is five times as slow: how far the others get, and how stale what they read is.

    python benchmarks/slow_worker.py [--workers 3] [--steps 60]

Each worker computes for 20 ms a step (the first for 100 ms) by sleeping, and trains a small model on real
gloo processes; the pace of the others is compared with that of the slow one.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from measure import run_ranks
from report import Report, make_parser

import relaxcomm

STEP_SECONDS, SLOWDOWN = 0.02, 5
CASES: dict[str, Any] = {
    "bsp": "bsp",
    "local_sgd 16": {"name": "local_sgd", "steps": 16},
    "ssp 0": {"name": "ssp", "staleness": 0},
    "ssp 3": {"name": "ssp", "staleness": 3},
    "ssp 30": {"name": "ssp", "staleness": 30},
    "ssp inf": {"name": "ssp", "staleness": float("inf")},
    "async_model_average": "async_model_average",
}


def train(rank: int, algorithm: Any, steps: int) -> list[dict[str, float]]:
    """Seconds that `steps` steps took on each rank, and the staleness that it saw."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(32, 64)
    engine = relaxcomm.attach(model, optimizer, {"algorithm": algorithm, "timeout_seconds": 60})
    begin = time.perf_counter()
    for _ in range(steps):
        time.sleep(STEP_SECONDS * (SLOWDOWN if rank == 0 else 1))
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - begin
    engine.close()
    mine = {"seconds": seconds, "staleness": engine.statistics.get("staleness_steps", 0.0)}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def main() -> None:
    arguments = make_parser("slow-worker", __doc__, workers=3, steps=60).parse_args()
    report = Report(arguments)
    found = {}
    for name, algorithm in CASES.items():
        ranks = run_ranks(train, arguments.workers, algorithm, arguments.steps)
        slow, *others = [one["seconds"] / arguments.steps for one in ranks]
        found[name] = {
            "slow_seconds_a_step": slow,
            "others_seconds_a_step": others,
            "staleness_steps": max(one["staleness"] for one in ranks),
        }
        pace = ", ".join(f"{1e3 * one:.0f}" for one in others)
        print(
            f"{name:13} slow worker {1e3 * slow:.0f} ms a step, the others {pace} ms, staleness seen "
            f"{found[name]['staleness_steps']:.0f}"
        )
    report.close(found)


if __name__ == "__main__":
    main()
