"""The engine's state as plain tensors, numbers and strings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from relaxcomm.engine.consistency import compare, share
from relaxcomm.errors import ConfigError
from relaxcomm.step.bound import Bound
from relaxcomm.step.step import Step

SCHEMA = 1
_TOGETHER = ("algorithm", "phase", "measured")


def export(step: Step) -> dict[str, Any]:
    """All state of this rank; results on their way are waited for and saved as results."""
    with _nobody_asking(step.bound):
        return _export(step)


def check_together(bound: Bound, saved: Mapping[str, Any]) -> None:
    """Refuse, on all ranks, states that they did not save together; every rank must call it.

    Raises: ConfigError for a state of another schema, rank, world size, algorithm or phase.
    """
    here = {"schema": SCHEMA, "rank": bound.world.rank, "world_size": bound.world.size}
    _agree(bound, _difference(here, saved), {key: str(saved.get(key)) for key in _TOGETHER})


def restore(step: Step, saved: Mapping[str, Any]) -> None:
    """Put a rank's state back; every rank must call it.

    Raises: ConfigError, on all ranks, for a state of another algorithm or model, or of another step than the
        others' where they keep step.
    """
    bound = step.bound
    problem = _difference({"algorithm": repr(bound.algorithm)}, saved)
    if saved.get("layout") is not None:
        names = [name for bucket in saved["layout"] for name in bucket]
        if sorted(names) != sorted(item.name for item in bound.replica.parameters):
            problem = ConfigError("the saved engine state is of a model with other trainable parameters")
    _agree(bound, problem, {"step": str(saved.get("step"))} if bound.plan.keeps_step else {})
    with _nobody_asking(bound):
        _restore(step, saved)


def _agree(bound: Bound, problem: ConfigError | None, together: Mapping[str, str]) -> None:
    compare(share(bound.world.transport, problem, together), "load the states that were saved together")


def _difference(here: Mapping[str, object], saved: Mapping[str, Any]) -> ConfigError | None:
    """What a saved state says otherwise than this run."""
    for key, value in here.items():
        if saved.get(key) != value:
            return ConfigError(
                f"the saved engine state has {key} {saved.get(key)!r}, this run has {value!r}; load the "
                "state that this rank saved"
            )
    return None


@contextmanager
def _nobody_asking(bound: Bound) -> Iterator[None]:
    """What services hold is whole only while no rank asks: all ranks enter and leave together."""
    if bound.state.services:
        bound.world.gather("quiet")
    yield
    if bound.state.services:
        bound.world.gather("goes on")


def _export(step: Step) -> dict[str, Any]:
    bound = step.bound
    buckets = bound.plan.buckets
    return {
        "schema": SCHEMA,
        "algorithm": repr(bound.algorithm),
        "rank": bound.world.rank,
        "world_size": bound.world.size,
        "step": bound.clock.step,
        "layout": None if buckets is None else [list(bucket.names) for bucket in buckets],
        **bound.state.export(),
        "votes": bound.votes.export(),
        "client_states": bound.replica.export_clients(),
        "values": bound.controllers.export(),
        "late_gradients": step.backward.export(),
        "late_parameters": step.parameters.export(),
        "statistics": bound.world.statistics.export(),
    }


def _restore(step: Step, saved: Mapping[str, Any]) -> None:
    bound = step.bound
    bound.clock.set(saved["step"])
    bound.world.statistics.restore(saved["statistics"])
    bound.votes.restore(saved["votes"])
    bound.replica.restore_clients(saved["client_states"])
    bound.controllers.restore(saved["values"])
    if saved["layout"] is None:
        return
    bound.lay_out_as(saved["layout"])
    bound.state.restore(saved)
    step.backward.restore(saved["late_gradients"])
    step.parameters.restore(saved["late_parameters"])
