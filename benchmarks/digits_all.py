"""Every bundled algorithm on scikit-learn's digits: accuracy over seeds, beside bsp and never exchanging.

    python -m benchmarks.digits_all [--seeds 5] [--epochs 30] [--partition iid] [--only NAME …] [--into FILE]

Eight in-process workers, a perceptron of 128 and 64 units, 8 samples a worker and step, and a learning rate
that falls along half a cosine over the epochs. Optimizer, topology and arguments are those of `PLANS` where
an algorithm needs its own; intervals are shortened to fit a run of some 660 steps. Wanted: 97 % on average,
and at most 1.5 points less than bsp.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import relaxcomm
from benchmarks.report import dated, environment, write_result
from relaxcomm.config import registry
from relaxcomm.tasks import digits

WORKERS, BATCH_SIZE = 8, 8
NEVER = "never exchanging"
WANTED, MARGIN = 0.97, 0.015


@dataclass(frozen=True)
class Plan:
    """How an algorithm is run.

    Args:
        arguments: of the algorithm.
        lr: of SGD.
        momentum: of SGD.
        settings: more of the configuration.
        adam: whether Adam takes the place of SGD, with an eps of 1e-3: where one worker has seen no gradient
            and another has, the mean of first moments would be divided by a second one near 0.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    lr: float = 0.05
    momentum: float = 0.9
    settings: dict[str, Any] = field(default_factory=dict)
    adam: bool = False


RING = {"topology": "ring"}
SIGN_RATE = 2e-3  # where every entry moves by the learning rate
PLANS = {
    "adaptive_local_sgd": Plan({"steps": 4, "max_batch_size": 64}, lr=0.2),  # for its last batch
    "ad_psgd": Plan(),
    "choco_sgd": Plan(settings=RING),
    "d_psgd": Plan(settings=RING),
    "dcd_psgd": Plan(settings=RING),
    "decoupled_diloco": Plan({"steps": 20}),
    "demo": Plan(lr=SIGN_RATE, momentum=0.0),
    "des_loc": Plan({"steps": 16}, lr=SIGN_RATE, momentum=0.0, adam=True),
    "dgc": Plan({"density": 0.05}, lr=0.3, momentum=0.0),  # sending an entry clears its momentum
    "diloco": Plan({"steps": 20}),
    "ef21": Plan({"density": 0.05}),
    "gaussiank_sgd": Plan({"density": 0.01}),
    "heloco": Plan({"steps": 20}),
    "hierarchical_local_sgd": Plan(settings={"topology": {"hierarchical": {"sizes": [4, 4]}}}),
    "low_precision_decentralized": Plan(),
    "post_local_sgd": Plan({"steps": 8, "after_steps": 100}),
    "qadam": Plan({"eps": 1e-3}, lr=SIGN_RATE, momentum=0.0),  # pixels that are always 0 learn no size
    "randomk_sgd": Plan({"density": 0.2}, lr=0.4, momentum=0.0),
    "sgp": Plan(settings={"topology": "one_peer_exponential"}),
    "signsgd": Plan(lr=5e-3, momentum=0.0),
    "slowmo": Plan({"steps": 12}),
    "sparseloco": Plan({"steps": 10, "num_kept": 256}),
    "streaming_diloco": Plan({"steps": 20}),
    "topk_sgd": Plan({"density": 0.01}),
}


def train(name: str, seed: int, epochs: int, partition: Any) -> dict[str, Any]:
    """One run: the accuracy of what is left, of rank 0's replica by epoch, and what was sent."""
    plan = PLANS.get(name, Plan())

    def worker(group: relaxcomm.InProcessGroup) -> dict[str, Any]:
        task = digits.make(seed, dropout=0.0, hidden=(128, 64))
        sgd, adam = partial(torch.optim.SGD, momentum=plan.momentum), partial(torch.optim.Adam, eps=1e-3)
        optimizer = (adam if plan.adam else sgd)(task.model.parameters(), lr=plan.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda epoch: 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / epochs)))
        )
        settings = {
            "algorithm": {"name": name, **plan.arguments} if name != NEVER else _never(),
            "seed": seed,
            "data": {"partition": partition},
            **plan.settings,
        }
        with relaxcomm.attach(task.model, optimizer, settings, process_group=group) as engine:
            loader, curve = engine.loader(task.train_data, batch_size=BATCH_SIZE), []
            for _ in range(epochs):
                for batch in loader:
                    group.sleep(1.0)
                    task.loss(task.model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                schedule.step()
                if group.rank() == 0:
                    with torch.no_grad():
                        curve.append(task.evaluate(task.model))
        with torch.no_grad():
            accuracy = task.evaluate(task.model)
        counts = engine.statistics
        return {
            "accuracy": accuracy,
            "curve": curve,
            "steps": counts["steps"],
            "megabytes": counts["bytes_sent"] / 1e6,
            "uncompressed_megabytes": counts["bytes_uncompressed"] / 1e6,
        }

    return relaxcomm.simulate(worker, WORKERS)[0]


def _never() -> dict[str, Any]:
    """Workers that train alone, and whose models are averaged when all is over."""
    return {"name": "local_sgd", "steps": 10**9}


def summary(runs: list[dict[str, Any]], reference: float) -> dict[str, Any]:
    """Mean accuracy, its spread, the distance from bsp, the share of bsp's bytes, and the mean by epoch."""
    accuracies = [run["accuracy"] for run in runs]
    return {
        "accuracy": statistics.mean(accuracies),
        "deviation": statistics.stdev(accuracies) if len(runs) > 1 else 0.0,
        "below_bsp": reference - statistics.mean(accuracies),
        "bytes": sum(run["megabytes"] for run in runs) / sum(run["uncompressed_megabytes"] for run in runs),
        "curve": [round(statistics.mean(at), 4) for at in zip(*(run["curve"] for run in runs), strict=True)],
    }


def verdict(found: dict[str, Any]) -> str:
    """Whether what was wanted is reached."""
    good = found["accuracy"] >= WANTED and found["below_bsp"] <= MARGIN
    return "reached" if good else "MISSED"


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--partition", default="iid")
    parser.add_argument("--only", nargs="*", default=[], help="algorithms besides bsp")
    parser.add_argument("--into", type=Path, help="a result of these options to complete; --only run anew")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", relaxcomm.CompositionWarning)
    bundled = [name for name, entry in registry.algorithms().items() if entry.origin == "relaxcomm"]
    path = options.into or dated("digits-all")
    before = json.loads(path.read_text()) if options.into else {}
    runs, plans, found = (before.get(part, {}) for part in ("runs", "plans", "found"))
    told = {"seeds": options.seeds, "epochs": options.epochs, "partition": options.partition}
    print(f"{'algorithm':28} accuracy  deviation  below bsp  bytes")
    for name in ["bsp", NEVER, *sorted({*(options.only or bundled), *runs} - {"bsp", NEVER})]:
        if name not in runs or name in options.only:
            seeds = range(options.seeds)
            runs[name] = [train(name, seed, options.epochs, options.partition) for seed in seeds]
            plans[name] = repr(PLANS.get(name, Plan()))
        reference = statistics.mean(run["accuracy"] for run in runs["bsp"])
        found[name] = one = summary(runs[name], reference)
        print(
            f"{name:28} {one['accuracy']:8.2%} {one['deviation']:10.2%} {one['below_bsp']:10.2%} "
            f"{one['bytes']:6.1%}  {verdict(one)}",
            flush=True,
        )
        facts = {"environment": environment(), "options": told, "plans": plans}
        write_result(path, {**facts, "found": found, "runs": runs})
    print(f"written to {path}")


if __name__ == "__main__":
    main()
