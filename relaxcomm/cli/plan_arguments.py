"""The options of `relaxcomm plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from relaxcomm.cli.options import option, written
from relaxcomm.fields.validation import shown


def parameter_count(text: str) -> int:
    """The size of a model.

    Raises: typer.BadParameter.

    Example:
        >>> parameter_count("1e9"), parameter_count("1_000")
        (1000000000, 1000)
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number < 2**63 or not number.is_integer():
        raise typer.BadParameter(f"{shown(text)} is no whole number of 1 or more; write 1000000, or 1e6")
    return int(number)


_NUMBER = written(Annotated[float, Field(allow_inf_nan=False)])
_POSITIVE = written(Annotated[float, Field(gt=0, allow_inf_nan=False)])
_SEEDS = written(Annotated[int, Field(ge=2)])


WorkerCounts = Annotated[
    str | None, option("Numbers of workers; default: the configuration's.", metavar="N,M,…")
]
Names = Annotated[str | None, option("Names, or all; default: the configuration's.", metavar="A,B,C")]
StepSeconds = Annotated[float | None, option("Of a step without communication.", metavar="S", parser=_NUMBER)]
Measure = Annotated[
    bool, typer.Option("--measure", metavar="", help="Measure a step and coding on this machine.")
]
LinkText = Annotated[
    str | None,
    option(
        "Each worker's link, such as 100mbit,5ms; of a graph, edges that have none.",
        metavar="RATE[,LATENCY[,BURST]]",
    ),
]
Graph = Annotated[
    Path | None, option("Graph of the workers with bandwidth and latency at its edges.", metavar="FILE")
]
Sites = Annotated[
    str | None,
    option(
        "2,1gbit,20ms: workers at 2 sites, each with one link of 1 Gbit/s to all others.",
        metavar="COUNT,RATE[,LATENCY]",
    ),
]
Parameters = Annotated[
    int | None,
    option("Model size; default: the task's.", "--parameters", metavar="D", parser=parameter_count),
]
Jitter = Annotated[
    float | None, option("Standard deviation of a worker's steps, in seconds.", metavar="S", parser=_NUMBER)
]
Stragglers = Annotated[
    str | None, option("0.01,3: one step in 100 takes 3 times as long.", metavar="SHARE,TIMES")
]
Deaths = Annotated[
    str | None,
    option(
        "86400,60: a worker lives a day on average, and another takes its place after a minute.",
        "--failures",
        metavar="LIFE,AWAY",
    ),
]
Coding = Annotated[
    float | None, option("Entries coded a second, there and back.", metavar="ENTRIES", parser=_POSITIVE)
]
Train = Annotated[
    bool,
    typer.Option("--train", metavar="", help="Train the task on simulated workers, in virtual time."),
]
Seeds = Annotated[
    int | None, option("Training runs of each algorithm; default: 3.", metavar="K", parser=_SEEDS)
]
Target = Annotated[
    float | None,
    option("Quality until which seconds are counted, with --train.", metavar="Q", parser=_NUMBER),
]
Within = Annotated[
    float | None,
    option(
        "Compare quality after these virtual seconds; default: when the first ends.",
        metavar="S",
        parser=_POSITIVE,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, for machines.")]
Picture = Annotated[
    Path | None,
    option("Draw it over workers or bandwidth; with --train quality over time.", "--plot", metavar="FILE"),
]
