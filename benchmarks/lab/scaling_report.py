"""Tables and a plot of what `benchmarks.lab.scaling` measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.lab.scaling_model import MARGIN, REFERENCE, Cost, Growth, costs, growths


def markdown(found: Sequence[Cost]) -> str:
    """The two tables as text."""
    parts = [
        "Predicted: operations * alpha + 8 * bytes / beta. alpha is an all-reduce of one entry; beta is the "
        f"rate, or on unshaped links what {REFERENCE} does from one entry to its largest size; both for each "
        "number of workers. Hosts share this machine's cores, so time that computes grows with the workers "
        "here; `CPU s`, the processor time of one host, shows whether its work does. A link lets its first "
        "0.25 MB pass at once, so that small messages can be faster than predicted.",
        "",
        "| contender | rate | workers | million | ms, median [all] | predicted | measured / predicted | "
        "MB a host | kernel / declared bytes | CPU s a host |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_line(cost) for cost in sorted(found, key=lambda c: (c.rate, c.workers, c.numel, c.label))),
        "",
        "Exponents: how costs grow with parameters (at a number of workers) and with workers (at a size). "
        f"Faster than it must, by more than {MARGIN:g}: **time** than predicted, which leaves out coding; "
        "**CPU** of a host than its bytes and than its part (linear in parameters, constant in workers).",
        "",
        "| contender | rate | at | along | time | predicted | CPU a host | bytes | faster than it must |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_growth_line(growth) for growth in growths(found)),
        "",
    ]
    return "\n".join(parts)


def _line(cost: Cost) -> str:
    every = " ".join(f"{1e3 * one:.3g}" for one in cost.seconds)
    return (
        f"| {cost.label} | {cost.rate} | {cost.workers} | {cost.numel / 1e6:g} | {1e3 * cost.measured:.3g} "
        f"[{every}] | {1e3 * cost.predicted:.3g} | {cost.measured / cost.predicted:.2f} | "
        f"{cost.bytes_sent / 1e6:.3g} | {cost.bytes_sent / cost.declared_bytes:.3f} | "
        f"{cost.cpu_seconds:.3g} |"
    )


def _growth_line(growth: Growth) -> str:
    where, along = (
        (f"{growth.workers} workers", "parameters")
        if growth.numel is None
        else (f"{growth.numel / 1e6:g} million", "workers")
    )
    marks = ["**time**"] * growth.too_fast + ["**CPU**"] * growth.works_too_much
    return (
        f"| {growth.label} | {growth.rate} | {where} | {along} | {growth.measured:.2f} | "
        f"{growth.predicted:.2f} | {growth.cpu:.2f} | {growth.bytes_sent:.2f} | {', '.join(marks)} |"
    )


def plot(found: Sequence[Cost], path: Path) -> None:
    """Measured time as points and predicted as dashes over the size, one panel a contender and rate."""
    rates, labels = sorted({cost.rate for cost in found}), sorted({cost.label for cost in found})
    figure, axes = plt.subplots(
        len(rates),
        len(labels),
        figsize=(3.6 * len(labels), 3.4 * len(rates)),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    for row, rate in zip(axes, rates, strict=True):
        for axis, label in zip(row, labels, strict=True):
            _panel(axis, [cost for cost in found if (cost.rate, cost.label) == (rate, label)])
            axis.set_title(f"{label}, {rate}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("million parameters")
    for axis in axes[:, 0]:
        axis.set_ylabel("seconds (dashed: predicted)")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Any, found: Sequence[Cost]) -> None:
    for index, workers in enumerate(sorted({cost.workers for cost in found})):
        line = sorted((cost for cost in found if cost.workers == workers), key=lambda cost: cost.numel)
        sizes, colour = [cost.numel / 1e6 for cost in line], f"C{index}"
        axis.plot(sizes, [cost.measured for cost in line], "o-", color=colour, label=f"{workers} workers")
        axis.plot(sizes, [cost.predicted for cost in line], "--", color=colour)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.grid(alpha=0.3)


def write(path: Path) -> None:
    """Write the tables and the plot of a result file beside it."""
    found = costs(json.loads(line) for line in path.read_text().splitlines())
    path.with_suffix(".md").write_text(markdown(found))
    plot(found, path.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path, help="a .jsonl file of the lab's scaling")
    write(parser.parse_args().result)


if __name__ == "__main__":
    main()
