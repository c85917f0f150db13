"""`relaxcomm demo`: what local steps bring on a slow network, seen in two minutes."""

from __future__ import annotations

from importlib.resources import as_file, files

from relaxcomm.cli.compare import compare
from relaxcomm.cli.job import Sets
from relaxcomm.cli.options import Traceback

_ALGORITHMS, _LINK = "bsp,local_sgd", "100mbit,5ms"


def demo(sets: Sets = None, traceback: Traceback = False) -> None:
    """Train on 1,797 bundled images over a simulated slow network, with and without local steps.

    Two workers on this machine, links of 100 Mbit/s and 5 ms; it ends with a table, and writes a plot and a
    report to runs/. It is compare on a bundled configuration; --set changes that, as in
    --set task.digits.epochs=5.
    """
    with as_file(files("relaxcomm.tasks") / "demo.yaml") as config:
        compare(config, _ALGORITHMS, link=_LINK, sets=sets, traceback=traceback)
