"""Forecasts as a picture: the time of a step over the workers, or over the links' bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from relaxcomm.cli.pictures import as_label, legend_below, make_log, new_figure, series_style, write_picture
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.planner.forecast import Forecast, forecast
from relaxcomm.planner.links import infinitely_fast
from relaxcomm.planner.scenario import Scenario
from relaxcomm.tensors.items import Item

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
