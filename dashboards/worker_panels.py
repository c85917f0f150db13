"""What the board of one worker shows: its values, and beside them the median of all ranks of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from panel import RANKS, Panel, Query  # neighbours of this file
from panels import ROWS

_PANELS = {panel.title: panel for _, panels in ROWS for panel in panels}
BESIDE_THE_MEDIAN = " (dashed: the median)"


def beside_the_median(title: str, description: str, width: int = 8) -> Panel:
    """A panel of the job's board that has a line for each rank, with the median of all ranks dashed."""
    panel = _PANELS[title]
    (query,) = panel.queries
    everyone = query.expression.replace(RANKS, 'run=~"$run"')
    return replace(
        panel,
        title=title + BESIDE_THE_MEDIAN,
        description=f"{description} Dashed: the median of all ranks of the run.",
        queries=(
            Query("A", query.expression, "rank {{rank}}"),
            Query("B", f"quantile by (run) (0.5, {everyone})", "median"),
        ),
        kind="lines",
        dashed="median",
        width=width,
    )


WORKER_ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Is this worker slower than the others?",
        (
            beside_the_median(
                "Which rank computes longest?",
                "A step's time without waiting. Above the median the worker is slow, and under algorithms "
                "that synchronise the others wait for it: look at its host.",
                width=12,
            ),
            beside_the_median(
                "How much of a step waits for the network?",
                "Share of the step in which it waits. Below the median it is the one for which others wait; "
                "above, its link is slow.",
                width=12,
            ),
            beside_the_median(
                "How many steps a second?",
                "They part from the others' under ssp, ad_psgd and their like only.",
            ),
            beside_the_median(
                "How long does the engine itself take?",
                "Time in relaxcomm's callbacks, waiting excluded. Above the median its processor is slow or "
                "busy.",
            ),
            replace(_PANELS["Does every rank answer?"], width=8),
        ),
    ),
    (
        "Does it send what it should?",
        (
            replace(_PANELS["How much is sent, and how much would be?"], width=8),
            beside_the_median(
                "Who receives most?", "Bytes a second. Far above the median it is a hub of the topology."
            ),
            _PANELS["How near is the trigger to its threshold?"],
        ),
    ),
    (
        "Does its replica go its own way?",
        (
            beside_the_median(
                "Does the loss fall on every rank?",
                "Its latest loss. One that stays above the median has other data, or a replica that drifts.",
                width=12,
            ),
            beside_the_median(
                "How far apart are the replicas?",
                "How far its parameters were from the combined ones, as a share of their norm.",
                width=12,
            ),
            beside_the_median(
                "Does what compression leaves out pile up?",
                "Norm of what compression has left for later. No data without error feedback.",
                width=12,
            ),
            beside_the_median(
                "How long since the last synchronisation?",
                "Time since it last exchanged anything. Ten minutes of training without an exchange raise an "
                "alert, also before the first one, when there is no data here.",
                width=12,
            ),
        ),
    ),
)
