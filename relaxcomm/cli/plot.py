"""The held-out measure over time and over bytes, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relaxcomm.cli.table import title
from relaxcomm.tasks.result import Result

_MARKERS = "osD^vPX*"


def plot(results: Sequence[Result], path: Path) -> Path:
    """Draw the history of each result and return the picture's path."""
    # A window system is not needed to write a file, and importing costs half a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    over_time, over_bytes = figure.subplots(1, 2, sharey=True)
    for index, result in enumerate(results):
        style: dict[str, Any] = {
            "label": result.algorithm,
            "marker": _MARKERS[index % len(_MARKERS)],
            "markersize": 3.5,
            "linewidth": 1.5,
        }
        measures = [point.measure for point in result.history]
        over_time.plot([point.seconds for point in result.history], measures, **style)
        over_bytes.plot([point.bytes_sent / 1e6 for point in result.history], measures, **style)
    over_time.set(xlabel="training time (s)", ylabel=f"held-out {results[0].heading}", xlim=(0, None))
    over_bytes.set(xlabel="sent by all workers (MB)")
    if any(result.bytes_sent for result in results):
        over_bytes.set_xscale("log")
        over_bytes.xaxis.set_major_formatter("{x:g}")
    for axes in (over_time, over_bytes):
        axes.grid(alpha=0.3)
    over_time.legend()
    figure.suptitle(title(results[0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
