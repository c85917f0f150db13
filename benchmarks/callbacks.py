"""What the engine's own callbacks cost in a local step, SelSync's statistics and its agreement apart.

    python benchmarks/callbacks.py [--workers 2] [--steps 60]

Everything is timed inside, on real gloo processes that train digits and charlm: microseconds a step, and
the share of the whole step. Nothing is exchanged but SelSync's one bit: thresholds and periods are too
high. `statistics` is the norm of the gradients, and the moving average; `agreement` is the time that a rank
stands waiting for the others' bits after the optimizer's step, behind which they travel.
"""

from __future__ import annotations

import statistics
import time
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from measure import run_ranks
from report import Report, make_parser

import relaxcomm
from relaxcomm.plugin import Observation
from relaxcomm.tasks import charlm, digits

TASKS = {"digits": digits.make, "charlm": charlm.make}
ALGORITHMS: dict[str, Any] = {
    "local_sgd": {"name": "local_sgd", "steps": 10**6},
    "selsync": {"name": "selsync", "threshold": 1e9, "window_steps": 5},
}
WARM_UP_STEPS = 10


def timed_statistics(spent: list[float]) -> None:
    """Let every norm that a trigger asks for add its seconds to `spent[-1]`."""
    norm = Observation.squared_norm.func

    @wraps(norm)
    def timed(self: Observation) -> float:
        begin = time.perf_counter()
        value: float = norm(self)
        spent[-1] += time.perf_counter() - begin
        return value

    prop = type(Observation.__dict__["squared_norm"])(timed)
    prop.__set_name__(Observation, "squared_norm")
    Observation.squared_norm = prop


def measure(rank: int, task_name: str, algorithm: Any, steps: int) -> list[dict[str, list[float]]]:
    """Seconds of each step: all of it, the callbacks, the statistics, the wait."""
    torch.manual_seed(0)
    norms = [0.0]
    timed_statistics(norms)
    task = TASKS[task_name](0)
    found: dict[str, list[float]] = {"step": [], "callbacks": [], "statistics": [], "agreement": []}
    with relaxcomm.attach(task.model, task.optimizer, {"algorithm": algorithm}) as engine:
        batch = next(iter(engine.loader(task.train_data, batch_size=32)))
        for _ in range(WARM_UP_STEPS + steps):
            before, norms[-1] = dict(engine.statistics), 0.0
            begin = time.perf_counter()
            task.loss(task.model, batch).backward()
            task.optimizer.step()
            task.optimizer.zero_grad()
            after = engine.statistics
            found["step"].append(time.perf_counter() - begin)
            found["statistics"].append(norms[-1])
            for name, key in (
                ("callbacks", "callback_seconds"),
                ("agreement", "exposed_communication_seconds"),
            ):
                found[name].append(after[key] - before[key])
        exchanged = engine.statistics["synchronisations"]
    if exchanged > WARM_UP_STEPS:
        raise RuntimeError(f"{exchanged} steps were exchanged; only local ones are meant to be timed")
    mine = {name: values[WARM_UP_STEPS:] for name, values in found.items()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def summary(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median_microseconds": middle * 1e6, "low": low * 1e6, "high": high * 1e6}


def main() -> None:
    arguments = make_parser("callbacks", __doc__, workers=2, steps=60).parse_args()
    report = Report(arguments)
    found = []
    for task in TASKS:
        for name, algorithm in ALGORITHMS.items():
            ranks = run_ranks(measure, arguments.workers, task, algorithm, arguments.steps)
            parts = {part: summary([value for rank in ranks for value in rank[part]]) for part in ranks[0]}
            found.append({"task": task, "algorithm": name, "parts": parts, "ranks": ranks})
            whole = parts["step"]["median_microseconds"]
            for part, one in parts.items():
                spread = f"[{one['low']:.0f}, {one['high']:.0f}]"
                share = one["median_microseconds"] / whole
                print(
                    f"{task:7} {name:10} {part:11} {one['median_microseconds']:9.0f} µs "
                    f"{spread:18} {share:6.2%}"
                )
    report.close(found)


if __name__ == "__main__":
    main()
