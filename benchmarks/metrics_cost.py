"""What metrics cost a training: microseconds a step inside their calls, and step times with and without.

    python benchmarks/metrics_cost.py [--workers 2] [--rounds 30] [--steps 10]

Three trainings live in the same gloo processes and take turns in all orders: one with metrics, that is
with an exporter that another process reads once a second and with a run log, and two without. The ratio
of the first to the second is what metrics cost, that of the two without is the noise floor. The calls are
timed in a pass of their own. Algorithms that exchange in every step are the worst case: every step is a
line of the log.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from measure import ratio_of_medians, run_ranks
from overhead_ranks import MODELS
from report import Report, make_parser
from torch import nn

import relaxcomm
from relaxcomm.engine.reporting.metering import Metering
from relaxcomm.monitoring.observations import InFlight
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.step.replica_norms import ReplicaNorms

ALGORITHMS: dict[str, Any] = {"bsp": "bsp", "topk_sgd": {"name": "topk_sgd", "density": 0.01}}
CALLS: dict[str, tuple[type, tuple[str, ...]]] = {
    "counting steps": (Statistics, ("tick",)),
    "exchanges on their way": (InFlight, ("departed", "landed")),
    "norms": (ReplicaNorms, ("residual", "wants_distance")),
    "lines of the log": (Metering, ("synchronised",)),
    "observed values": (Metering, ("observe",)),
}
SIDES = ("with", "without", "without again")
ORDERS = tuple(itertools.permutations(SIDES))
SCRAPER = """
import sys, time, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1]).read()
    time.sleep(1)
"""
WARM_UP_STEPS, SETTLE_STEPS, INSIDE_STEPS = 5, 2, 100


class Training:
    """One of the trainings that take turns."""

    def __init__(self, model_name: str, config: dict[str, Any]) -> None:
        make_model, make_batch = MODELS[model_name]
        torch.manual_seed(0)
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.engine = relaxcomm.attach(self.model, self.optimizer, config)
        self.inputs = make_batch()
        self.targets = torch.randint(8, (len(self.inputs),))

    def step(self) -> float:
        """Seconds of a step."""
        begin = time.perf_counter()
        loss = nn.functional.cross_entropy(self.model(self.inputs), self.targets)
        self.engine.observe(loss=loss)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begin


@contextmanager
def timed_calls(spent: dict[str, float]) -> Iterator[None]:
    """Add up the seconds inside each kind of call, without what timing them costs."""
    kept = [(owner, name, getattr(owner, name)) for owner, names in CALLS.values() for name in names]
    cost = _timing_cost()
    for kind, (owner, names) in CALLS.items():
        for name in names:
            setattr(owner, name, _timed(getattr(owner, name), spent, kind, cost))
    try:
        yield
    finally:
        for owner, name, call in kept:
            setattr(owner, name, call)


def _timed(call: Callable[..., Any], spent: dict[str, float], kind: str, cost: float) -> Callable[..., Any]:
    @wraps(call)
    def timed(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            spent[kind] = spent.get(kind, 0.0) + time.perf_counter() - begin - cost

    return timed


def _timing_cost() -> float:
    """Seconds that an empty call seems to take."""
    spent: dict[str, float] = {}
    empty = _timed(lambda: None, spent, "empty", 0.0)
    for _ in range(2000):
        empty()
    return spent["empty"] / 2000


def inside(side: Training) -> list[dict[str, float]]:
    """Seconds inside each kind of call, in each of some steps."""
    spent: dict[str, float] = {}
    found = []
    with timed_calls(spent):
        side.engine._session.step._report = side.engine._session.metering.synchronised  # the timed one
        for _ in range(INSIDE_STEPS):
            spent.clear()
            side.step()
            found.append(dict(spent))
    return found


def measure(rank: int, model_name: str, algorithm: Any, rounds: int, steps: int, folder: str) -> Any:
    """Step times of all sides by round, averaged over the ranks, and seconds inside the calls by step."""
    with_metrics = {"algorithm": algorithm, "metrics": {"port": 0}, "output": folder}
    configs = (with_metrics, {"algorithm": algorithm}, {"algorithm": algorithm})
    sides = {name: Training(model_name, config) for name, config in zip(SIDES, configs, strict=True)}
    scraper = subprocess.Popen([sys.executable, "-c", SCRAPER, f"{sides['with'].engine.metrics_url}/metrics"])
    times: dict[str, list[list[float]]] = {name: [] for name in SIDES}
    try:
        for side in sides.values():
            for _ in range(WARM_UP_STEPS):
                side.step()
        for index in range(rounds):
            for name in ORDERS[index % len(ORDERS)]:
                dist.barrier()
                for _ in range(SETTLE_STEPS):
                    sides[name].step()
                block = torch.tensor([sides[name].step() for _ in range(steps)], dtype=torch.float64)
                dist.all_reduce(block)
                times[name].append([round(value, 7) for value in (block / dist.get_world_size()).tolist()])
        calls = inside(sides["with"])
    finally:
        scraper.kill()
        scraper.wait()
    for side in sides.values():
        side.engine.close()
    return times, calls


def main() -> None:
    parser = make_parser("metrics-cost", __doc__, workers=2, rounds=30, steps=10)  # steps of a turn
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["mlp", "transformer"])
    plan = parser.parse_args()
    report = Report(plan)
    records = []
    for model_name, (name, algorithm) in itertools.product(plan.models, ALGORITHMS.items()):
        with tempfile.TemporaryDirectory() as folder:
            arguments = (model_name, algorithm, plan.rounds, plan.steps, folder)
            times, calls = run_ranks(measure, plan.workers, *arguments)
        cost = ratio_of_medians(times["with"], times["without"])
        floor = ratio_of_medians(times["without again"], times["without"])
        step = statistics.median(itertools.chain(*times["without"]))
        print(f"{model_name} {name}: a step {step * 1e3:.2f} ms; with / without {cost}, floor {floor}")
        inside_seconds = {kind: [one.get(kind, 0.0) for one in calls] for kind in CALLS}
        inside_seconds["together"] = [sum(one.values()) for one in calls]
        for kind, seconds in inside_seconds.items():
            median, mean = statistics.median(seconds), statistics.fmean(seconds)
            print(f"  {kind}: median {median * 1e6:.1f}, mean {mean * 1e6:.1f} µs a step")
        print(f"  together {statistics.fmean(inside_seconds['together']) / step:.3%} of a step")
        record = {"model": model_name, "algorithm": name, "cost": cost, "floor": floor}
        records.append(record | {"inside_seconds": inside_seconds, "seconds": times})
    report.close(records)


if __name__ == "__main__":
    main()
