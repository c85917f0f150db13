"""The state of what is done in a step, as plain tensors, numbers and strings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from relaxcomm.engine.saved_state.state_schema import SCHEMA
from relaxcomm.step.bound import Bound
from relaxcomm.step.step import Step


def export(step: Step, *, is_loaded: bool = False) -> dict[str, Any]:
    """All state of this rank; results on their way are waited for and saved as results.

    Args:
        step: whose.
        is_loaded: whether other weights were loaded since the last step, which those are not to move.
    """
    bound = step.bound
    with _nobody_asking(bound):
        buckets = bound.plan.buckets
        # What lands now is staged in what the rules keep, which is saved after it.
        gradients, parameters = step.backward.export(is_loaded), step.parameters.late.export(is_loaded)
        return {
            "schema": SCHEMA,
            "algorithm": repr(bound.algorithm),
            "rank": bound.world.rank,
            "world_size": bound.world.size,
            "step": bound.clock.step,
            "layout": None if buckets is None else [list(bucket.names) for bucket in buckets],
            "strides": None if buckets is None else [list(bucket.strides) for bucket in buckets],
            **bound.state.export(),
            "votes": bound.votes.export(),
            "client_states": bound.replica.clients.export(),
            "values": bound.controllers.export(),
            "late_gradients": gradients,
            "late_parameters": parameters,
            "statistics": bound.world.statistics.export(),
        }


def restore(step: Step, saved: Mapping[str, Any]) -> None:
    """Put a rank's state back, which was checked; every rank must call it."""
    bound = step.bound
    with _nobody_asking(bound):
        bound.clock.step = saved["step"]
        bound.world.statistics.restore(saved["statistics"])
        bound.votes.restore(saved["votes"])
        bound.replica.clients.restore(saved["client_states"])
        bound.controllers.restore(saved["values"])
        if saved["layout"] is not None:
            bound.lay_out_as(saved["layout"], saved["strides"])
            bound.state.restore(saved)
        elif (buckets := bound.plan.buckets) is None:
            return
        else:  # as it was before its first backward
            bound.lay_out_like(buckets)
            bound.state.begin_anew(bound.plan, bound.clock.context)
        step.backward.restore(saved["late_gradients"])
        step.parameters.late.restore(saved["late_parameters"])


@contextmanager
def _nobody_asking(bound: Bound) -> Iterator[None]:
    """What services hold is whole only while no rank asks: all ranks enter and leave together."""
    if bound.state.services:
        bound.meet("state_dict() or load_state_dict()")
    yield
    if bound.state.services:
        bound.meet("the end of state_dict() or load_state_dict()")
