"""The state of what is done in a step, as plain tensors, numbers and strings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from relaxcomm.engine.saved_state.state_schema import SCHEMA, EngineState
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
        late = export_late(step, is_loaded=is_loaded)  # staged in what rules keep, which is saved after it
        return {
            "schema": SCHEMA,
            "algorithm": repr(bound.algorithm),
            "rank": bound.world.rank,
            "world_size": bound.world.size,
            "step": bound.clock.step,
            "layout": None if buckets is None else [list(bucket.names) for bucket in buckets],
            "strides": None if buckets is None else [list(bucket.strides) for bucket in buckets],
            **bound.state.export(),
            **late,
            "client_states": bound.replica.clients.export(),
            "values": bound.controllers.export(),
            "statistics": bound.world.statistics.export(),
        }


def restore(step: Step, saved: EngineState) -> None:
    """Put a rank's state back, which was checked; every rank must call it."""
    bound = step.bound
    with _nobody_asking(bound):
        bound.clock.step = saved.step
        bound.world.statistics.restore(dict(saved.statistics))
        bound.replica.clients.restore(saved.client_states)
        bound.controllers.restore(saved.values)
        if saved.layout is not None:
            bound.lay_out_as(saved.layout, saved.strides)
            bound.state.restore(dict(saved))
        elif bound.plan.buckets is not None:  # as it was before its first backward
            bound.lay_out_like(bound.plan.buckets)
            bound.state.begin_anew(bound.plan, bound.clock.context)
        if bound.plan.buckets is not None:
            restore_late(step, dict(saved.votes), saved.late_gradients, saved.late_parameters)


def export_late(step: Step, *, is_loaded: bool = False) -> dict[str, Any]:
    """Results on their way, which are waited for; by the names that `restore_late` has for them."""
    return {
        "votes": step.bound.votes.export(),
        "late_gradients": step.backward.export(is_loaded),
        "late_parameters": step.parameters.late.export(is_loaded),
    }


def restore_late(
    step: Step,
    votes: Mapping[str, Any],
    late_gradients: Iterable[Sequence[Any]],
    late_parameters: Iterable[Sequence[Any]],
) -> None:
    """Put results back that were on their way, into buckets that are laid out."""
    step.bound.votes.restore(votes)
    step.backward.restore(late_gradients)
    step.parameters.late.restore(late_parameters)


@contextmanager
def _nobody_asking(bound: Bound) -> Iterator[None]:
    """What services hold is whole only while no rank asks: all ranks enter and leave together."""
    if bound.state.services:
        bound.meet("state_dict() or load_state_dict()")
    yield
    if bound.state.services:
        bound.meet("the end of state_dict() or load_state_dict()")
