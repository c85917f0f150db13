"""Pilot runs as a picture: quality over virtual time, with its spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaxcomm.cli.pictures import as_label, legend_below, make_log, new_figure, series_style, write_picture
from relaxcomm.training.pilot_statistics import Pilot


def plot_pilots(pilots: Sequence[Pilot], path: Path) -> Path:
    """Draw a panel for each number of workers, and return the picture's path."""
    sizes = list(dict.fromkeys(one.workers for one in pilots))
    names = list(dict.fromkeys(one.name for one in pilots))
    figure = new_figure(1 + 5.0 * len(sizes), 4.2)
    panels = figure.subplots(1, len(sizes), squeeze=False)[0]
    for axes, size in zip(panels, sizes, strict=True):
        for one in pilots:
            if one.workers == size:
                _draw(axes, one, series_style(names.index(one.name)))
        axes.set(xlabel="virtual seconds", ylabel=pilots[0].results[0].metric)
        make_log(axes, "x")
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.set_title(f"{size} worker{'s' if size > 1 else ''}", fontsize="medium")
        axes.grid(alpha=0.3)
    legend_below(figure)
    return write_picture(figure, path)


def _draw(axes: Any, pilot: Pilot, style: dict[str, Any]) -> None:
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
