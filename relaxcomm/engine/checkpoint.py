"""The engine's state as plain tensors, numbers and strings."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from relaxcomm.engine.agreement import compare, share
from relaxcomm.engine.bucket_rules import LateGradient
from relaxcomm.engine.flights import Flight
from relaxcomm.engine.run import Run
from relaxcomm.engine.window import Window
from relaxcomm.errors import ConfigError

SCHEMA = 1
_TOGETHER = ("algorithm", "phase", "measured")


def export(window: Window) -> dict[str, Any]:
    """All state of this rank; results on their way are waited for and saved as results."""
    with _nobody_asking(window.run):
        return _export(window)


def check_together(run: Run, saved: Mapping[str, Any]) -> None:
    """Refuse, on all ranks, states that they did not save together; every rank must call it.

    Raises: ConfigError for a state of another schema, rank, world size, algorithm or phase.
    """
    membership = run.transport.membership
    here = {"schema": SCHEMA, "rank": membership.rank, "world_size": membership.world_size}
    _agree(run, _difference(here, saved), {key: str(saved.get(key)) for key in _TOGETHER})


def restore(window: Window, saved: Mapping[str, Any]) -> None:
    """Put a rank's state back; every rank must call it.

    Raises: ConfigError, on all ranks, for a state of another algorithm or model, or of another step than the
        others' where they keep step.
    """
    run = window.run
    problem = _difference({"algorithm": repr(run.algorithm)}, saved)
    if saved.get("layout") is not None:
        names = [name for bucket in saved["layout"] for name in bucket]
        if sorted(names) != sorted(item.name for item in run.parameters):
            problem = ConfigError("the saved engine state is of a model with other trainable parameters")
    _agree(run, problem, {"step": str(saved.get("step"))} if run.algorithm.keeps_step else {})
    with _nobody_asking(run):
        _restore(window, saved)


def _agree(run: Run, problem: ConfigError | None, together: Mapping[str, str]) -> None:
    compare(share(run.transport, problem, together), "load the states that were saved together")


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
def _nobody_asking(run: Run) -> Iterator[None]:
    """What services hold is whole only while no rank asks: all ranks enter and leave together."""
    if run.services:
        run.transport.gather_objects("quiet")
    yield
    if run.services:
        run.transport.gather_objects("goes on")


def _export(window: Window) -> dict[str, Any]:
    run = window.run
    membership = run.transport.membership
    return {
        "schema": SCHEMA,
        "algorithm": repr(run.algorithm),
        "rank": membership.rank,
        "world_size": membership.world_size,
        "step": run.step,
        "layout": None if run.buckets is None else [list(bucket.names) for bucket in run.buckets],
        "slots": [[rule, unit, state.export()] for (rule, unit), state in run.state.items()],
        "votes": run.votes.export(),
        "rounds": [[rule, unit, count] for (rule, unit), count in run.rounds.items()],
        "services": [[rule, unit, service.export()] for (rule, unit), service in run.services.items()],
        "client_states": _export_clients(window),
        "values": dict(run.control.values),
        "late_gradients": [
            [late.due, late.index, rules.bucket.index, _landed(window, late.flight)]
            for rules in window.backward.buckets
            for late in rules.late
        ],
        "late_parameters": [window.step.exchanges.export(late) for late in window.step.late],
        "statistics": run.statistics.export(),
    }


def _restore(window: Window, saved: Mapping[str, Any]) -> None:
    run = window.run
    run.step = saved["step"]
    run.statistics.restore(saved["statistics"])
    run.votes.restore(saved["votes"])
    names_to_parameters = {item.name: item.tensor for item in run.parameters}
    for client, states in saved["client_states"].items():
        for optimizer, own in zip(run.optimizers, run.states_of(client), strict=True):
            held = {p for group in optimizer.param_groups for p in group["params"]}
            for name, values in states.items():
                if names_to_parameters[name] in held:
                    own[names_to_parameters[name]].update(copy.deepcopy(values))
    run.control.restore(saved["values"])
    if saved["layout"] is None:
        return
    run.lay_out_as(saved["layout"])
    for rule, unit, slots in saved["slots"]:
        run.state[rule, unit].restore(slots)
    for rule, unit, count in saved["rounds"]:
        run.rounds[rule, unit] = count
    for rule, unit, service in saved["services"]:
        run.services[rule, unit].restore(service)
    window.backward.bind()
    for due, index, unit, result in saved["late_gradients"]:
        window.backward.buckets[unit].late.append(LateGradient(due, index, Flight.landed(result)))
    window.step.late = [window.step.exchanges.restored(late) for late in saved["late_parameters"]]


def _export_clients(window: Window) -> dict[int, dict[str, Any]]:
    """Each client's optimizer state by the names of the parameters."""
    names = {item.tensor: item.name for item in window.run.parameters}
    return {
        client: {names[p]: copy.deepcopy(one) for own in states for p, one in own.items() if p in names}
        for client, states in window.run.client_states.items()
    }


def _landed(window: Window, flight: Flight) -> Tensor:
    return flight.land(window.run.transport, window.run.statistics).clone()
