"""Pictures in files: their kinds, colours and figures, and how they are written."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from relaxcomm.errors import ConfigError
from relaxcomm.system.files import write_whole

MARKERS = "osD^vPX*"
# Okabe and Ito's colours, which colour-blind people tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_FORMATS = (".png", ".svg", ".pdf")


def check_matplotlib(who: str) -> None:
    """Raise ConfigError if nothing can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"{who} draws with matplotlib; install it with: pip install 'relaxcomm[demo]'")


def check_picture(option: str, path: Path) -> None:
    """Raise ConfigError if the file that an option names cannot become a picture."""
    if path.suffix not in _FORMATS:
        raise ConfigError(f"{option} {path}: name a file that ends in {', '.join(_FORMATS)}")
    check_matplotlib(option)


def new_figure(width: float, height: float) -> Any:
    """A figure of so many inches, without a window."""
    # A window system is not needed to write a file, and importing costs half a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_picture(figure: Any, path: Path) -> Path:
    """Write what is drawn as the kind of picture that the path's ending names; returns the path."""
    target = io.BytesIO()
    figure.savefig(target, dpi=120, format=path.suffix[1:])
    return write_whole(path, target.getvalue())
