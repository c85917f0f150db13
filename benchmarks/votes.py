"""SelSync's votes over a run: what each worker compares in each step, and when all exchange.

    python -m benchmarks.votes [--workers 4] [--epochs 12]

Trains digits with in-process workers by SelSync's defaults and with another smoothing; draws each worker's
relative change against the threshold, with the synchronisations, as docs/votes.png.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import relaxcomm
from benchmarks.report import Report, make_parser
from relaxcomm.tasks import digits

PICTURE = Path(__file__).parents[1] / "docs" / "votes.png"
THRESHOLD, WINDOW = 0.25, 25
SMOOTHINGS = (0.16, 0.5)
# Okabe and Ito's colours, which colour-blind people tell apart.
COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")


def train(smoothing: float, workers: int, epochs: int) -> dict[str, Any]:
    """The change that each worker saw in each step, the steps that exchanged, and the quality."""

    def worker(group: relaxcomm.InProcessGroup) -> dict[str, Any]:
        task = digits.make(0, dropout=0.0, hidden=(128, 64))
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05, momentum=0.9)
        algorithm = {
            "name": "selsync",
            "threshold": THRESHOLD,
            "window_steps": WINDOW,
            "smoothing": smoothing,
        }
        changes, exchanged, before = [], [], 0.0
        with relaxcomm.attach(task.model, optimizer, {"algorithm": algorithm}, process_group=group) as engine:
            loader = engine.loader(task.train_data, batch_size=16)
            for _ in range(epochs):
                for batch in loader:
                    task.loss(task.model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    changes.append(float(engine.snapshot().triggers["0"][0]))
                    now = engine.statistics["synchronisations"]
                    exchanged.append(now > before)
                    before = now
        with torch.no_grad():
            quality = task.evaluate(task.model)
        return {"changes": changes, "exchanged": exchanged, "quality": quality}

    ranks = relaxcomm.simulate(worker, workers)
    steps = [step for step, exchanged in enumerate(ranks[0]["exchanged"]) if exchanged]
    return {
        "changes": [[round(change, 4) for change in rank["changes"]] for rank in ranks],
        "synchronisations": steps,
        "accuracy": round(ranks[0]["quality"], 4),
    }


def draw(runs: dict[float, dict[str, Any]]) -> None:
    """One panel for each smoothing."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, sharey=True)
    for axes, (smoothing, run) in zip(panels, runs.items(), strict=True):
        steps = len(run["changes"][0])
        exchanged = run["synchronisations"]
        for rank, changes in enumerate(run["changes"]):
            dots = {"marker": ".", "linestyle": "none", "markersize": 5, "color": COLOURS[rank % 7]}
            # The first step has nothing to compare with.
            axes.plot(range(1, steps), changes[1:], label=f"worker {rank}", **dots)
        axes.axhline(THRESHOLD, color="#D55E00", label=f"threshold {THRESHOLD:g}")
        axes.axvspan(0, WINDOW - 0.5, color="0.92", zorder=0, label=f"first {WINDOW} steps")
        marks = {"marker": "|", "linestyle": "none", "markersize": 9, "color": "black", "clip_on": False}
        axes.plot(exchanged, [1.03] * len(exchanged), transform=axes.get_xaxis_transform(), **marks)
        title = f"smoothing {smoothing:g}: exchanged in {len(exchanged)} of {steps} steps (marks above)"
        axes.set_title(title, pad=14)
        axes.set(yscale="log", ylim=(1e-3, 10), ylabel="relative change Δ", xlim=(0, steps))
        axes.yaxis.set_major_formatter("{x:g}")
    panels[-1].set_xlabel("optimizer step")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=7)
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    arguments = make_parser("votes", __doc__, workers=4, epochs=12).parse_args()
    report = Report(arguments)
    runs = {smoothing: train(smoothing, arguments.workers, arguments.epochs) for smoothing in SMOOTHINGS}
    for smoothing, run in runs.items():
        print(f"smoothing {smoothing}: {len(run['synchronisations'])} synchronisations, {run['accuracy']}")
    draw(runs)
    report.close({str(smoothing): run for smoothing, run in runs.items()})
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
