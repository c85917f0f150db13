"""Facts that the papers claim, tried on digits and charlm: runs compared, reported as they come out.

    python benchmarks/facts.py [--task digits] [--seeds 3] [--epochs 12] [--only NAME …]

Runs are in-process ranks (virtual time), so only quality, steps, synchronisations and bytes count; under ssp
the first worker is five times as slow as the others. Quality is accuracy on digits and minus bits per
character on charlm. A fact holds if the medians over the seeds are in the claimed order, or within the task's
margin of it; all numbers are kept.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from report import dated, environment, write_result

import relaxcomm
from relaxcomm.tasks import Task, charlm, digits

WORKERS = 4
Run = dict[str, float]


@dataclass(frozen=True)
class Trial:
    """A task as the facts use it.

    Args:
        make: the task of a seed.
        batch_size: samples a worker and step.
        target: quality that counts as reached.
        margin: differences in quality below this are noise.
        rates: learning rate of SGD, by its momentum.
        own_optimizer: whether the task's own optimizer is used where a fact does not ask for SGD.
    """

    make: Callable[[int], Task]
    batch_size: int
    target: float
    margin: float
    rates: dict[float, float]
    own_optimizer: bool = False


TRIALS = {
    "digits": Trial(
        lambda seed: digits.make(seed, dropout=0.0, hidden=(128, 64)), 16, 0.95, 0.01, {0.9: 0.05, 0.0: 0.5}
    ),
    "charlm": Trial(
        lambda seed: charlm.make(seed, samples=4096), 16, -3.7, 0.03, {0.9: 0.05, 0.0: 0.5}, True
    ),
}


def optimizer_of(trial: Trial, task: Task, momentum: float | None) -> torch.optim.Optimizer:
    if momentum is None and trial.own_optimizer:
        return task.optimizer
    momentum = 0.9 if momentum is None else momentum
    return torch.optim.SGD(task.model.parameters(), lr=trial.rates[momentum], momentum=momentum)


def train(
    trial: Trial, algorithm: Any, seed: int, epochs: int, *, momentum: float | None = None, **data: Any
) -> Run:
    """Train on in-process workers; quality of the mean model and what was exchanged."""

    def worker(group: relaxcomm.InProcessGroup) -> Run:
        task = trial.make(seed)
        optimizer = optimizer_of(trial, task, momentum)
        settings = {"algorithm": algorithm, "seed": seed, "data": data}
        reached = at_target = math.inf
        sign = 1 if task.higher_is_better else -1
        pace = 5.0 if engine_name(algorithm) == "ssp" else 1.0
        with relaxcomm.attach(task.model, optimizer, settings, process_group=group) as engine:
            loader = engine.loader(task.train_data, batch_size=trial.batch_size)
            for epoch in range(epochs):
                for batch in loader:
                    group.sleep(pace if group.rank() == 0 else 1.0)
                    task.loss(task.model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                with engine.averaged(), torch.no_grad():
                    quality = sign * task.evaluate(task.model)
                if quality >= trial.target and reached == math.inf:
                    reached, at_target = epoch + 1, engine.statistics["synchronisations"]
        with torch.no_grad():
            final = sign * task.evaluate(task.model)
        counts = engine.statistics
        return {
            "quality": final,
            "epochs_to_target": reached,
            "synchronisations_to_target": at_target,
            "lssr": counts["lssr"],
            "steps": counts["steps"],
            "synchronisations": counts["synchronisations"],
            "megabytes": counts["bytes_sent"] / 1e6,
        }

    return relaxcomm.simulate(worker, WORKERS)[0]


def engine_name(algorithm: Any) -> str:
    return str(algorithm if isinstance(algorithm, str) else algorithm["name"])


def selsync(threshold: float, **more: Any) -> dict[str, Any]:
    return {"name": "selsync", "threshold": threshold, **more}


FACTS: dict[
    str, tuple[str, dict[str, tuple[Any, dict[str, Any]]], Callable[[dict[str, Run], float], bool]]
] = {
    "lssr_rises": (
        "LSSR rises with the threshold",
        {str(t): (selsync(t), {}) for t in (0.0, 0.1, 0.3, 1.0)},
        lambda r, margin: r["0.0"]["lssr"] <= r["0.1"]["lssr"] <= r["0.3"]["lssr"] <= r["1.0"]["lssr"],
    ),
    "parameters_beat_gradients": (
        "SelSync: parameter aggregation is at least as good as gradient aggregation",
        {
            "parameters": (selsync(0.3), {}),
            "gradients": (selsync(0.3, aggregate="gradients"), {}),
        },
        lambda r, margin: r["parameters"]["quality"] >= r["gradients"]["quality"] - margin,
    ),
    "seldp_beats_disjoint": (
        "SelDP beats disjoint shards by label under long local phases",
        {
            "seldp": ({"name": "local_sgd", "steps": 64}, {"partition": "seldp"}),
            "by_label": ({"name": "local_sgd", "steps": 64}, {"partition": "by_label"}),
            "disjoint": ({"name": "local_sgd", "steps": 64}, {"partition": "disjoint"}),
        },
        lambda r, margin: r["seldp"]["quality"] >= max(r["by_label"]["quality"], r["disjoint"]["quality"]),
    ),
    "injection_helps": (
        "Data injection helps on by-label data",
        {
            "without": ({"name": "local_sgd", "steps": 32}, {"partition": "by_label"}),
            "with": (
                {"name": "local_sgd", "steps": 32},
                {"partition": "by_label", "injection": {"alpha": 0.5, "beta": 0.5}},
            ),
        },
        lambda r, margin: r["with"]["quality"] > r["without"]["quality"],
    ),
    "epochs_save_rounds": (
        "FedAvg needs far fewer rounds with 5 local epochs than with 1",
        {
            "1": ({"name": "fedavg", "epochs": 1}, {}),
            "5": ({"name": "fedavg", "epochs": 5}, {}),
        },
        lambda r, margin: r["5"]["epochs_to_target"] <= 0.5 * r["1"]["epochs_to_target"],
    ),
    "adaptive_batches": (
        "Adaptive batches grow, and reach the quality of fixed ones in fewer synchronisations",
        {
            "fixed 16": ({"name": "local_sgd", "steps": 8}, {}),
            "adaptive 16 to 64": (
                {"name": "adaptive_local_sgd", "steps": 8, "tolerance": 0.8, "max_batch_size": 64},
                {},
            ),
        },
        lambda r, margin: (
            r["adaptive 16 to 64"]["steps"] < r["fixed 16"]["steps"]
            and r["adaptive 16 to 64"]["synchronisations_to_target"]
            < r["fixed 16"]["synchronisations_to_target"]
            and r["adaptive 16 to 64"]["quality"] >= r["fixed 16"]["quality"] - margin
        ),
    ),
    "gaussiank_is_dense": (
        "GaussianK reaches dense accuracy at density 0.01",
        {
            "bsp": ("bsp", {}),
            "0.01": ({"name": "gaussiank_sgd", "density": 0.01}, {}),
            "0.001": ({"name": "gaussiank_sgd", "density": 0.001}, {}),
        },
        lambda r, margin: r["0.01"]["quality"] >= r["bsp"]["quality"] - margin,
    ),
    "staleness_hurts_momentum": (
        "Staleness hurts momentum more than plain SGD (quality lost against staleness 0)",
        {
            f"{kind} {s}": (
                {"name": "ssp", "staleness": s},
                {"momentum": 0.9 if kind == "momentum" else 0.0},
            )
            for kind in ("momentum", "plain")
            for s in (0, 16)
        },
        lambda r, margin: (
            r["momentum 0"]["quality"] - r["momentum 16"]["quality"]
            >= r["plain 0"]["quality"] - r["plain 16"]["quality"]
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument("--task", choices=sorted(TRIALS), default="digits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--only", nargs="*", choices=sorted(FACTS), default=sorted(FACTS))
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trial = TRIALS[arguments.task]
    output = arguments.output or dated(f"facts-{arguments.task}")
    found = []
    for name in arguments.only:
        claim, runs, holds = FACTS[name]
        results = {
            label: [
                train(trial, algorithm, seed, arguments.epochs, **data) for seed in range(arguments.seeds)
            ]
            for label, (algorithm, data) in runs.items()
        }
        medians = {
            label: {key: statistics.median(run[key] for run in seeds) for key in seeds[0]}
            for label, seeds in results.items()
        }
        found.append(
            {
                "name": name,
                "claim": claim,
                "holds": holds(medians, trial.margin),
                "medians": medians,
                "runs": results,
            }
        )
        print(f"{'holds' if found[-1]['holds'] else 'DOES NOT HOLD'}: {claim}")
        for label, one in medians.items():
            print(
                f"  {label:18} quality {one['quality']:.4f}  exchanges {one['synchronisations']:.0f}  "
                f"lssr {one['lssr']:.3f}  {one['megabytes']:.2f} MB  "
                f"epochs to target {one['epochs_to_target']:.0f}"
            )
        write_result(
            output,
            {
                "environment": environment(),
                "task": arguments.task,
                "workers": WORKERS,
                "epochs": arguments.epochs,
                "facts": found,
            },
        )


if __name__ == "__main__":
    main()
