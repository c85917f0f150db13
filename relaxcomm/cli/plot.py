"""Results as pictures: the measure over time, bytes and steps, and where time and bytes went."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from relaxcomm.cli.pictures import as_label, legend_below, make_log, new_figure, series_style, write_picture
from relaxcomm.cli.table import title
from relaxcomm.training.results import Point, Result

_PARTS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#999999")  # of a bar, which is no algorithm's colour


def plot(results: Sequence[Result], path: Path) -> Path:
    """Draw the history of each result over time and bytes, and return the picture's path."""
    figure = new_figure(10, 4.2)
    over_time, over_bytes = figure.subplots(1, 2, sharey=True)
    draw_time(over_time, results)
    draw_bytes(over_bytes, results)
    over_time.set_ylabel(f"held-out {results[0].heading}")
    figure.suptitle(title(results[0]))
    legend_below(figure)
    return write_picture(figure, path)


def draw_time(axes: Any, results: Sequence[Result]) -> None:
    """The measure over training time."""
    _draw(axes, results, lambda point: point.seconds)
    axes.set(xlabel="training time (s)", xlim=(0, None))


def draw_bytes(axes: Any, results: Sequence[Result]) -> None:
    """The measure over bytes."""
    _draw(axes, results, lambda point: point.bytes_sent / 1e6)
    axes.set(xlabel="sent by all workers (MB)")
    if any(result.bytes_sent for result in results):
        make_log(axes, "x")


def draw_steps(axes: Any, results: Sequence[Result]) -> None:
    """The measure over optimizer steps."""
    _draw(axes, results, lambda point: point.step)
    axes.set(xlabel="optimizer steps", xlim=(0, None))


def draw_seconds(axes: Any, results: Sequence[Result]) -> None:
    """Training time, split into computing and exposed communication."""
    names = [as_label(result.algorithm) for result in results]
    exposed = [min(result.seconds, result.exposed_communication_seconds) for result in results]
    computing = [result.seconds - waited for result, waited in zip(results, exposed, strict=True)]
    inside, waiting = _PARTS[:2]
    axes.barh(names, computing, color=inside, label="computing")
    axes.barh(names, exposed, left=computing, color=waiting, label="exposed communication")
    axes.set(xlabel="training time (s)")
    _finish_bars(axes)


def draw_primitives(axes: Any, results: Sequence[Result]) -> None:
    """Bytes of each algorithm, by exchange primitive."""
    names = [as_label(result.algorithm) for result in results]
    primitives = sorted({name for result in results for name in result.bytes_by_primitive})
    left = [0.0] * len(results)
    for index, primitive in enumerate(primitives):
        sent = [result.bytes_by_primitive.get(primitive, 0) / 1e6 for result in results]
        axes.barh(names, sent, left=left, color=_PARTS[index % len(_PARTS)], label=primitive)
        left = [before + more for before, more in zip(left, sent, strict=True)]
    axes.set(xlabel="sent by all workers (MB)")
    _finish_bars(axes)


def svg(draw: Callable[[Any, Sequence[Result]], None], results: Sequence[Result], *, height: float) -> str:
    """A picture of one of the above for a page, without anything outside itself."""
    figure = new_figure(6.2, height)
    axes = figure.subplots()
    draw(axes, results)
    if axes.lines:
        legend_below(figure)
    target = io.StringIO()
    figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    return text[text.index("<svg") :]


def _draw(axes: Any, results: Sequence[Result], x_of: Callable[[Point], float]) -> None:
    for index, result in enumerate(results):
        axes.plot(
            [x_of(point) for point in result.history],
            [point.measure for point in result.history],
            label=as_label(result.algorithm),
            **series_style(index),
        )
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(alpha=0.3)


def _finish_bars(axes: Any) -> None:
    """The first result on top, and the legend where no bar is."""
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:  # none where one worker sends nothing
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
