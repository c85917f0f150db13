"""Facts that the papers claim, tried on the task digits: comparisons of runs, reported as they come out.

    python benchmarks/facts.py [--seeds 3] [--epochs 12] [--only NAME …]

Runs are in-process ranks (virtual time), so only quality, steps, synchronisations and bytes count; under ssp
the first worker is five times as slow as the others. A fact holds if the medians over the seeds are in the
claimed order; all numbers are kept.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import dated, environment, write_result

import relaxcomm
from relaxcomm.tasks import digits

WORKERS = 4
Run = dict[str, float]


def train(
    algorithm: Any, seed: int, epochs: int, *, momentum: float = 0.9, lr: float = 0.05, **data: Any
) -> Run:
    """Train digits on in-process workers; accuracy of the mean model and what was exchanged."""

    def worker(group: relaxcomm.InProcessGroup) -> Run:
        task = digits.make(seed, dropout=0.0, hidden=(128, 64))
        optimizer = torch.optim.SGD(task.model.parameters(), lr=lr, momentum=momentum)
        settings = {"algorithm": algorithm, "seed": seed, "data": data}
        reached = float("nan")
        pace = 5.0 if engine_name(algorithm) == "ssp" else 1.0
        with relaxcomm.attach(task.model, optimizer, settings, process_group=group) as engine:
            loader = engine.loader(task.train_data, batch_size=16)
            for epoch in range(epochs):
                for batch in loader:
                    group.sleep(pace if group.rank() == 0 else 1.0)
                    task.loss(task.model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                with engine.averaged(), torch.no_grad():
                    accuracy = task.evaluate(task.model)
                if accuracy >= 0.95 and reached != reached:
                    reached = epoch + 1
        with torch.no_grad():
            final = task.evaluate(task.model)
        counts = engine.statistics
        return {
            "accuracy": final,
            "epochs_to_95": reached if reached == reached else float("inf"),
            "lssr": counts["lssr"],
            "steps": counts["steps"],
            "synchronisations": counts["synchronisations"],
            "megabytes": counts["bytes_sent"] / 1e6,
        }

    return relaxcomm.simulate(worker, WORKERS)[0]


def engine_name(algorithm: Any) -> str:
    return str(algorithm if isinstance(algorithm, str) else algorithm["name"])


def selsync(threshold: float, **more: Any) -> dict[str, Any]:
    return {"name": "selsync", "threshold": threshold, "smoothing": 0.16, **more}


FACTS: dict[str, tuple[str, dict[str, tuple[Any, dict[str, Any]]], Callable[[dict[str, Run]], bool]]] = {
    "lssr_rises": (
        "LSSR rises with the threshold",
        {str(t): (selsync(t), {}) for t in (0.0, 0.1, 0.3, 1.0)},
        lambda r: r["0.0"]["lssr"] <= r["0.1"]["lssr"] <= r["0.3"]["lssr"] <= r["1.0"]["lssr"],
    ),
    "parameters_beat_gradients": (
        "SelSync: parameter aggregation is at least as good as gradient aggregation",
        {
            "parameters": (selsync(0.3), {}),
            "gradients": (selsync(0.3, aggregate="gradients"), {}),
        },
        lambda r: r["parameters"]["accuracy"] >= r["gradients"]["accuracy"],
    ),
    "seldp_beats_disjoint": (
        "SelDP beats disjoint shards by label under long local phases",
        {
            "seldp": ({"name": "local_sgd", "steps": 64}, {"partition": "seldp"}),
            "by_label": ({"name": "local_sgd", "steps": 64}, {"partition": "by_label"}),
            "disjoint": ({"name": "local_sgd", "steps": 64}, {"partition": "disjoint"}),
        },
        lambda r: r["seldp"]["accuracy"] >= max(r["by_label"]["accuracy"], r["disjoint"]["accuracy"]),
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
        lambda r: r["with"]["accuracy"] > r["without"]["accuracy"],
    ),
    "epochs_save_rounds": (
        "FedAvg needs far fewer rounds with 5 local epochs than with 1",
        {
            "1": ({"name": "fedavg", "epochs": 1}, {}),
            "5": ({"name": "fedavg", "epochs": 5}, {}),
        },
        lambda r: r["5"]["epochs_to_95"] <= 0.5 * r["1"]["epochs_to_95"],
    ),
    "adaptive_batches": (
        "Adaptive batches reach the accuracy of fixed ones in fewer synchronisations",
        {
            "fixed": ({"name": "local_sgd", "steps": 8}, {}),
            "adaptive": (
                {"name": "adaptive_local_sgd", "steps": 8, "tolerance": 0.8, "max_batch_size": 128},
                {},
            ),
        },
        lambda r: (
            r["adaptive"]["synchronisations"] < r["fixed"]["synchronisations"]
            and r["adaptive"]["accuracy"] >= r["fixed"]["accuracy"] - 0.01
        ),
    ),
    "gaussiank_is_dense": (
        "GaussianK reaches dense accuracy at density 0.01",
        {
            "bsp": ("bsp", {}),
            "0.01": ({"name": "gaussiank_sgd", "density": 0.01}, {}),
            "0.001": ({"name": "gaussiank_sgd", "density": 0.001}, {}),
        },
        lambda r: r["0.01"]["accuracy"] >= r["bsp"]["accuracy"] - 0.015,
    ),
    "staleness_hurts_momentum": (
        "Staleness hurts momentum more than plain SGD (accuracy lost against staleness 0)",
        {
            f"{kind} {s}": (
                {"name": "ssp", "staleness": s},
                {"momentum": 0.9 if kind == "momentum" else 0.0, "lr": 0.05 if kind == "momentum" else 0.5},
            )
            for kind in ("momentum", "plain")
            for s in (0, 16)
        },
        lambda r: (
            r["momentum 0"]["accuracy"] - r["momentum 16"]["accuracy"]
            >= r["plain 0"]["accuracy"] - r["plain 16"]["accuracy"]
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--only", nargs="*", choices=sorted(FACTS), default=sorted(FACTS))
    parser.add_argument("--output", type=Path, default=dated("facts"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for name in arguments.only:
        claim, runs, holds = FACTS[name]
        results = {
            label: [train(algorithm, seed, arguments.epochs, **data) for seed in range(arguments.seeds)]
            for label, (algorithm, data) in runs.items()
        }
        medians = {
            label: {key: statistics.median(run[key] for run in seeds) for key in seeds[0]}
            for label, seeds in results.items()
        }
        found.append(
            {"name": name, "claim": claim, "holds": holds(medians), "medians": medians, "runs": results}
        )
        print(f"{'holds' if found[-1]['holds'] else 'DOES NOT HOLD'}: {claim}")
        for label, one in medians.items():
            print(
                f"  {label:14} accuracy {one['accuracy']:.4f}  exchanges {one['synchronisations']:.0f}  "
                f"lssr {one['lssr']:.3f}  {one['megabytes']:.2f} MB  epochs to 95 % {one['epochs_to_95']:.0f}"
            )
        write_result(
            arguments.output,
            {"environment": environment(), "workers": WORKERS, "epochs": arguments.epochs, "facts": found},
        )


if __name__ == "__main__":
    main()
