"""The README's table of the lab: `python -m benchmarks.lab.headline`, from the newest run of each task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.lab.aims import fastest
from benchmarks.lab.overview import Run, runs
from benchmarks.lab.tables import Row
from benchmarks.lab.workloads import WORKLOADS
from benchmarks.report import RESULTS

_WORKERS, _RATE = 4, "100mbit"
_RIVALS = ("periodic_averaging", "ddp")
_HEADS = ("task", "nothing sent", "relaxcomm", "fastest rival", "DistributedDataParallel")


def headline(folder: Path) -> str:
    """A line for each task, from its newest run in which both rivals took part."""
    lines = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    for task in WORKLOADS:
        lines.append(f"| {' | '.join(_line(max(_candidates(folder, task), key=lambda run: run.date)))} |")
    return "\n".join(lines) + "\n"


def _candidates(folder: Path, task: str) -> Iterator[Run]:
    for run in runs(folder):
        place, rivals = run.table.place, {row.label for row in run.table.rivals}
        if (place.workload, place.workers, place.rate) == (task, _WORKERS, _RATE) and rivals.issuperset(
            _RIVALS
        ):
            yield run


def _line(run: Run) -> tuple[str, ...]:
    best, rival = fastest(run.table.ours), fastest(run.table.rivals)
    ddp = next(row for row in run.table.rivals if row.label == "ddp")
    report = f"benchmarks/results/{run.path.with_suffix('.md').name}"
    return (
        f"[{run.table.place.workload}]({report})",
        f"{run.table.limit:.2g} s",
        f"**{_seconds(best)}**, {_named(best)}",
        f"{_seconds(rival)}, {_named(rival)}",
        _seconds(ddp),
    )


def _named(row: Row) -> str:
    """Its whole name: what is compressed or late is not what is bundled under the name alone."""
    name, comma, how = row.label.removeprefix("relaxcomm ").partition(",")
    return "PyTorch's averaging" if name == "periodic_averaging" else f"`{name}`{comma}{how}"


def _seconds(row: Row) -> str:
    return f"{row.seconds:.3g} s" + (", derived" if row.derived else "")


if __name__ == "__main__":
    print(headline(RESULTS), end="")
