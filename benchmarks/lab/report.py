"""What a result file says: a table for each workload, number of workers and rate, and a plot."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.lab.aims import aims
from benchmarks.lab.split import HEADERS, cells
from benchmarks.lab.tables import Record, Row, Table, read, synchronous_row, tables
from benchmarks.lab.workloads import WORKLOADS

_MUCH = 5  # times between the slowest and the fastest, from where on an axis is logarithmic


def markdown(found: Sequence[Table], said: Sequence[str] = ()) -> str:
    """The tables as text, after remarks that somebody added to the file (`{"kind": "remark", "text": …}`)."""
    parts = [line for remark in said for line in (remark, "")]
    for table in found:
        target = WORKLOADS[table.place.workload].target
        synchronous = synchronous_row(table.rows)
        name = "DDP" if synchronous is None or synchronous.label == "ddp" else synchronous.label
        seconds = synchronous.seconds if synchronous else math.nan
        parts += [
            f"### {table.place.title()}",
            "",
            f"Target {target:g}; limit ({name}'s steps, nothing exchanged): {table.limit:.2f} s.",
            "",
            f"| contender | setting | seconds to target, median [all] | of limit | {name} over it | "
            f"MB sent | steps | final | {' | '.join(HEADERS)} |",
            "|---" * (8 + len(HEADERS)) + "|",
            *(_line(row, table.limit, seconds) for row in table.rows),
            "",
            *(f"- {aim}" for aim in aims(table)),
            *(f"- {row.label}: {row.note}" for row in table.rows if row.note),
            "",
        ]
    return "\n".join(parts)


def _line(row: Row, limit: float, synchronous: float) -> str:
    every = " ".join(f"{one.seconds:.3g}" for one in row.reached)
    sent = median(one.bytes_sent for one in row.reached) / 1e6
    steps = median(one.steps for one in row.reached)
    times = " | ".join(cells(row.split))
    derived = " (derived)" if row.derived else ""
    return (
        f"| {row.label} | {row.setting} | {row.seconds:.3g} [{every}]{derived} | {row.seconds / limit:.2f} | "
        f"{synchronous / row.seconds:.1f} | {sent:,.0f} | {steps:.0f} | {row.end:.4f} | {times} |"
    )


def plot(found: Sequence[Table], path: Path) -> None:
    """Times to the target, all repetitions and the median, one panel a place, with the limit as a line."""
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    height = 1.2 + 0.36 * max(len(table.rows) for table in found)
    figure, axes = plt.subplots(rows, columns, figsize=(6.6 * columns, height * rows), squeeze=False)
    for axis, table in zip(axes.flat, found, strict=False):
        _panel(axis, table)
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Axes, table: Table) -> None:
    shown = list(reversed(table.rows))
    for place, row in enumerate(shown):
        colour = "#1f77b4" if row.is_ours else "#6e6e6e"
        every = [one.seconds for one in row.reached if math.isfinite(one.seconds)]
        inside = "none" if row.derived else colour
        axis.scatter(every, [place] * len(every), s=26, facecolors=inside, edgecolors=colour, alpha=0.5)
        if math.isfinite(row.seconds):
            axis.scatter([row.seconds], [place], s=160, marker="|", color=colour, linewidths=2.5)
            axis.text(1.02, place, f"{row.seconds:.3g}", transform=axis.get_yaxis_transform(), va="center")
    axis.set_yticks(range(len(shown)), [_told(row) for row in shown])
    axis.set_ylim(-0.6, len(shown) - 0.4)
    axis.grid(axis="x", alpha=0.25)
    axis.axvline(table.limit, color="black", linestyle="--", linewidth=1)
    times = [one.seconds for row in shown for one in row.reached if math.isfinite(one.seconds)]
    if times and max(times) > _MUCH * min(times):
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    elif times:
        axis.set_xlim(0, 1.08 * max(times))
    axis.set_xlabel("seconds to the target (bar and number: median, dashed: limit)")
    axis.set_title(table.place.title().replace(" (", "\n("))


def _told(row: Row) -> str:
    if not math.isfinite(row.seconds):
        return f"{row.label} (not reached)"
    return f"{row.label} (derived)" if row.derived else row.label


def remarks(records: Sequence[Record]) -> list[str]:
    """What somebody added to a result file."""
    return [record["text"] for record in records if record["kind"] == "remark"]


def write(path: Path) -> None:
    """Write the tables and the plot of a result file beside it."""
    records = read(path)
    found = tables(records)
    path.with_suffix(".md").write_text(markdown(found, remarks(records)))
    plot(found, path.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, help="a .jsonl file of the standard set")
    write(parser.parse_args().result)


if __name__ == "__main__":
    main()
