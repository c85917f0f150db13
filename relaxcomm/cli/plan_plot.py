"""What `relaxcomm plan` draws: the time of a step over workers or bandwidth, or quality over virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from relaxcomm.cli.pictures import as_label, legend_below, make_log, new_figure, series_style, write_picture
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.planner.forecast import Forecast, forecast
from relaxcomm.planner.links import infinitely_fast
from relaxcomm.planner.scenario import Scenario
from relaxcomm.tensors.items import Item
from relaxcomm.training.pilot_statistics import Pilot

Planned = tuple[Scenario, Algorithm, Forecast]

_FACTORS = tuple(10 ** (power / 6) for power in range(-12, 13))


def plot_forecasts(plans: Sequence[Planned], items: Sequence[Item], path: Path) -> Path:
    """Draw the time of a step of each algorithm, and return the picture's path."""
    figure = new_figure(7, 4.5)
    axes = figure.subplots()
    names = list(dict.fromkeys(one.name for _, _, one in plans))
    sizes = sorted({one.workers for _, _, one in plans})
    over_workers = len(sizes) > 1 or infinitely_fast(plans[0][0].links)
    for index, name in enumerate(names):
        rows = [plan for plan in plans if plan[2].name == name]
        if over_workers:
            points = [(float(one.workers), one.replayed.step_seconds) for _, _, one in rows]
        else:
            points = _over_bandwidth(rows[0], items)
        axes.plot(*zip(*points, strict=True), label=as_label(name), **series_style(index))
    alone = plans[0][0].step_times.seconds
    axes.axhline(alone, color="#999999", linestyle="--", linewidth=1, label="nothing sent")
    low, high = axes.dataLim.intervaly
    if high < 1.1 * low:  # rounding alone would fill the axis
        axes.set_ylim(low / 2, high * 2)
    make_log(axes, "x")
    make_log(axes, "y")
    axes.set(xlabel="workers" if over_workers else "bandwidth of the slowest link (Mbit/s)")
    axes.set(ylabel="seconds a step")
    if over_workers:
        axes.set_xticks(sizes, map(str, sizes))
        axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    legend_below(figure)
    return write_picture(figure, path)


def _over_bandwidth(plan: Planned, items: Sequence[Item]) -> list[tuple[float, float]]:
    """Megabits a second and seconds; what a planner would choose is asked at each."""
    scenario, algorithm, _ = plan
    points = []
    for factor in _FACTORS:
        links = scenario.links.times(factor)
        there = replace(scenario, links=links)
        seconds = forecast(algorithm, items, there, utilisations=()).replayed.step_seconds
        points.append((8e-6 * links.slowest.bytes_per_second, seconds))
    return points


def plot_pilots(pilots: Sequence[Pilot], path: Path) -> Path:
    """Draw quality with its spread over seeds, a panel for each number of workers, and return the path."""
    sizes = list(dict.fromkeys(one.workers for one in pilots))
    names = list(dict.fromkeys(one.name for one in pilots))
    figure = new_figure(1 + 5.0 * len(sizes), 4.2)
    panels = figure.subplots(1, len(sizes), squeeze=False)[0]
    for axes, size in zip(panels, sizes, strict=True):
        for one in pilots:
            if one.workers == size:
                _draw_pilot(axes, one, series_style(names.index(one.name)))
        axes.set(xlabel="virtual seconds", ylabel=pilots[0].results[0].metric)
        make_log(axes, "x")
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.set_title(f"{size} worker{'s' if size > 1 else ''}", fontsize="medium")
        axes.grid(alpha=0.3)
    legend_below(figure)
    return write_picture(figure, path)


def _draw_pilot(axes: Any, pilot: Pilot, style: dict[str, Any]) -> None:
    """The median over seeds, at the median time of each evaluation, and from the least to the greatest."""
    count = min(len(one.history) for one in pilot.results)
    seconds, measures = (
        np.array([[getattr(point, name) for point in one.history[:count]] for one in pilot.results])
        for name in ("seconds", "measure")
    )
    at = np.median(seconds, axis=0)
    axes.plot(at, np.median(measures, axis=0), label=as_label(pilot.name), **style)
    least, most = measures.min(axis=0), measures.max(axis=0)
    axes.fill_between(at, least, most, color=style["color"], alpha=0.2, linewidth=0)
