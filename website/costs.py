"""What an algorithm sends and needs, replayed from its Plan as `relaxcomm plan` does."""

from __future__ import annotations

from relaxcomm import Algorithm, Link, RelaxcommError
from relaxcomm.planner.footprint import footprints, mean_footprint
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.replay import Replay, shapes_only
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.system.quantities import data_size
from relaxcomm.topology import complete

_WORKERS = (2, 4, 8, 16)
_TENSORS, _SIDE = 16, 250  # a million parameters
_SMALL = 32, 32  # of such a tensor, in which state is made
_STEP_SECONDS, _BYTES_A_SECOND, _LATENCY_SECONDS = 0.1, 12.5e6, 1e-3
_ABOUT = """\
For 1,000,000 float32 parameters in 16 matrices, links of 100 Mbit/s and 1 ms, and steps that compute for 0.1
seconds; by the [planner](../plan.md), on average over steps and workers. Memory is that beside the model,
`.grad` and the optimizer, in bytes a parameter.

| workers | sent a step | time of a step | kept | buffers | while messages are under way |
|---|---|---|---|---|---|
"""
_CHOSEN = "Of the rule above: a planner may choose another one.\n\n"


def table(algorithm: Algorithm) -> str:
    """What each worker sends in a step, how long that takes, and its memory, at several world sizes."""
    rows = "\n".join(f"| {workers} | {_row(algorithm, workers)} |" for workers in _WORKERS)
    return f"{_CHOSEN if algorithm.planner else ''}{_ABOUT}{rows}\n"


def _row(algorithm: Algorithm, workers: int) -> str:
    items = shapes_only([(_SIDE, _SIDE)] * _TENSORS)
    link = Link(latency_seconds=_LATENCY_SECONDS, bytes_per_second=_BYTES_A_SECOND)
    try:
        scenario = Scenario(workers, StepTimes(_STEP_SECONDS), OwnLinks(link))
        replayed = Replay(algorithm, items, scenario).run()
        of_ranks = footprints(algorithm, shapes_only([_SMALL] * _TENSORS), workers, complete())
    except RelaxcommError as error:
        return f"not possible: {error} | | | |"
    sent = data_size(replayed.sent_bytes)
    needed = mean_footprint(of_ranks, workers)
    memory = f"{needed.kept:.1f} | {needed.buffers:.1f} | {needed.under_way:.1f}"
    return f"{sent} | {replayed.step_seconds:.3f} s | {memory}"
