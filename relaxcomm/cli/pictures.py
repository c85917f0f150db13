"""Pictures in files: their kinds, how series, axes and legends look, and how they are written."""

from __future__ import annotations

import importlib.util
import io
import math
from pathlib import Path
from typing import Any

from relaxcomm.errors import ConfigError
from relaxcomm.system.files import check_folder, write_whole

_MARKERS = "osD^vPX*"
# Okabe and Ito's colours, which colour-blind people tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_NAMED = {0.3: "123456789", 1.0: "2346", 3.0: "25"}  # digits at ticks, on an axis of fewer decades
_FORMATS = (".png", ".svg", ".pdf")


def check_matplotlib(who: str) -> None:
    """Raise ConfigError if nothing can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"{who} draws with matplotlib; install it with: pip install 'relaxcomm[demo]'")


def check_picture(option: str, path: Path) -> None:
    """Raise ConfigError if the file that an option names cannot become a picture."""
    if path.suffix not in _FORMATS:
        raise ConfigError(f"{option} {path}: name a file that ends in {', '.join(_FORMATS)}")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; name a file")
    check_matplotlib(option)
    check_folder(option, path.parent)


def new_figure(width: float, height: float) -> Any:
    """A figure of so many inches, without a window."""
    # A window system is not needed to write a file, and importing costs half a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def series_style(index: int) -> dict[str, Any]:
    """How the line of a series looks; the first 64 differ."""
    turn, colour = divmod(index, len(_COLOURS))
    marker = _MARKERS[(turn + colour) % len(_MARKERS)]
    return {"color": _COLOURS[colour], "marker": marker, "markersize": 4.5, "linewidth": 1.5}


def as_label(name: str) -> str:
    """A name as a label that shows it as it is: no mathematics between $, none left out for its first _."""
    return ("\u200b" if name.startswith("_") else "") + name.replace("$", r"\$")


def make_log(axes: Any, name: str) -> None:
    """Make the x or y axis logarithmic, with plain numbers at its ticks: 20, not 2 x 10^1."""
    getattr(axes, f"set_{name}scale")("log", nonpositive="mask")  # what lies at 0 is nowhere on it
    axis = getattr(axes, f"{name}axis")

    def between_decades(x: float, position: int | None) -> str:
        least, most = axis.get_view_interval()
        decades = math.log10(most / least)
        digits = next((some for few, some in _NAMED.items() if decades < few), "")
        return f"{x:.7g}" if f"{x:e}"[0] in digits else ""

    axis.set_major_formatter("{x:.7g}")
    axis.set_minor_formatter(between_decades)
    axis.set_tick_params(which="both", length=3.5, pad=3.5)  # the numbers of both stand in one row


def legend_below(figure: Any) -> None:
    """Name all series once, below the axes, and make the figure as much higher.

    A series is the same on all axes if it looks so: two of one name have an entry each.
    """
    named = {
        (label, handle.get_color(), handle.get_marker()): handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    labels = [label for label, *_ in named]
    for columns in range(min(len(named), 6), 0, -1):
        where = {"loc": "outside lower center", "ncols": columns}
        legend = figure.legend(named.values(), labels, **where, fontsize="small", frameon=False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)


def write_picture(figure: Any, path: Path) -> Path:
    """Write what is drawn as the kind of picture that the path's ending names; returns the path."""
    target = io.BytesIO()
    figure.savefig(target, dpi=120, format=path.suffix[1:])
    return write_whole(path, target.getvalue())
