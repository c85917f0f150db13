"""All that this rank needs to go on as if it had not been stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from relaxcomm.carry import carry, with_means
from relaxcomm.engine import engine_state
from relaxcomm.engine.attaching.consistency import sharing_errors
from relaxcomm.engine.saved_state import run_optimizers
from relaxcomm.engine.saved_state.run_schema import parse_run
from relaxcomm.engine.saved_state.saved_parts import SavedPart, check_schedulers, load_all, scheduler_kinds
from relaxcomm.engine.saved_state.state_fits import kind
from relaxcomm.engine.session import Session
from relaxcomm.engine.switching.switching import check_between_steps
from relaxcomm.errors import ConfigError
from relaxcomm.replica.optimizer_order import listed
from relaxcomm.replica.replica import Replica
from relaxcomm.replica.sharding import held
from relaxcomm.step.world import World
from relaxcomm.system.random_states import export_random, restore_random
from relaxcomm.system.torch_classes import derives_from


class Stateful(Protocol):
    """What has a state, such as a learning rate scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """It, as tensors, numbers and strings."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Go on from it."""


@runtime_checkable
class CarriedStateful(Stateful, Protocol):
    """What knows what becomes of its state, which differs between ranks, with another number of them."""

    def carry_state_dicts(self, state_dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What a rank goes on from, made of the states of all ranks that there were, in rank order."""


def check_others(others: Mapping[str, Any]) -> None:
    """Raise ConfigError for what has no state, such as a number."""
    for name, one in others.items():
        # Not by isinstance: from Python 3.12 on that sees nothing of what wraps another by __getattr__.
        if not all(callable(getattr(one, method, None)) for method in ("state_dict", "load_state_dict")):
            raise ConfigError(
                f"{name!r} is of type {type(one).__name__}, without state_dict() and load_state_dict(); give "
                "an object that has both, such as a scheduler. The step and the epoch of engine.loader are "
                "saved anyway"
            )


def name_of(rank: int) -> str:
    """The name of a rank's state among those of all."""
    return f"rank_{rank}"


def of_rank(world: World, saved: Mapping[str, Any]) -> Any:
    """This rank's state of those that were saved; every rank calls it.

    Raises: ConfigError, on every rank, where it is not among them.
    """
    name = name_of(world.rank)
    with sharing_errors(world.transport, "load_state_dict()"):
        found = saved.get(name) if isinstance(saved, Mapping) else None
        if not isinstance(found, list | tuple) or len(found) != 1:
            has = sorted(map(str, saved)) if isinstance(saved, Mapping) else type(saved).__name__
            raise ConfigError(
                f"the saved engine state has {has}, and {name!r} with one state in a tuple is needed; load "
                "what this rank saved"
            )
    return found[0]


def export(session: Session, others: Mapping[str, Stateful]) -> dict[str, Any]:
    """The state of this rank; the tensors of all but the engine are those that training changes.

    Raises: UsageError in the middle of a step; ConfigError for an optimizer's state that could not be loaded,
        and for what has no state.
    """

    def check() -> None:
        check_between_steps(session.loop, "the run is saved", "save")
        check_others(others)

    replica, engine = session.replica, engine_state.export(session, check)  # what meets others is done first
    return {
        "model": held(replica.model_state()),
        "optimizers": run_optimizers.export(replica.optimizers),
        "optimizer_settings": run_optimizers.settings(replica.optimizers),
        "optimizer_parameters": listed(replica),
        "scaler": None if replica.scaler is None else replica.scaler.state_dict(),
        "engine": engine,
        "random": export_random(replica.device),
        "others": {name: one.state_dict() for name, one in others.items()},
        "scheduler_kinds": scheduler_kinds(others),
    }


def carried(
    session: Session, states: Sequence[Mapping[str, Any]], others: Mapping[str, Stateful]
) -> dict[str, Any]:
    """What this rank goes on from, made of the states of another number of ranks, in rank order.

    Raises: ConfigError for what cannot be this run's, or cannot be carried; on this rank alone.
    """
    states = [_checked(session.replica, state, others) for state in states]
    algorithm = engine_state.algorithm_of(session, [state["engine"] for state in states])
    kept: list[dict[str, Any]] = [{} for _ in states]
    for name, one in others.items():
        held_by_all = [state["others"][name] for state in states]
        if isinstance(one, CarriedStateful):
            held_by_all = [one.carry_state_dicts(held_by_all)] * len(states)
        elif isinstance(one, nn.Module):
            _refuse_sums(name, one)
            held_by_all = with_means(held_by_all)
        for each, value in zip(kept, held_by_all, strict=True):
            each[name] = value
    shared = [{**state, "others": one} for state, one in zip(states, kept, strict=True)]
    return carry(shared, session.world.membership, algorithm, session.replica)


def _refuse_sums(name: str, module: nn.Module) -> None:
    """Refuse metrics of torchmetrics', which add up what each worker has seen: of those there is no mean."""
    metrics = [one for one in module.modules() if derives_from(type(one), "Metric", "torchmetrics")]
    if any(getattr(one, "metric_state", {}).keys() & one.state_dict() for one in metrics):  # not its networks
        raise ConfigError(
            f"{name!r} holds sums over what each worker has seen, as torchmetrics do, which a mean "
            "would change for another number of workers; compute and reset it before the run is saved, and "
            "leave it out, or give it a method carry_state_dicts(states)"
        )


def restore(session: Session, saved: Mapping[str, Any], others: Mapping[str, Stateful]) -> None:
    """Go on from what this rank has exported; every rank calls it.

    Raises: ConfigError, on every rank and before anything has changed, for what cannot be this run's.
    """
    with sharing_errors(session.world.transport, "checkpoint.load()"):
        saved = _checked(session.replica, saved, others)
    engine = engine_state.checked(session, saved["engine"])
    replica = session.replica
    with run_optimizers.telling_of_options(replica.optimizers, rank=session.world.process.rank):
        load_all(session.world.transport, _parts(replica, saved, others))
    replica.load_model(saved["model"])
    engine_state.restore(session, engine)
    restore_random(saved["random"], replica.device)


def _parts(replica: Replica, saved: Mapping[str, Any], others: Mapping[str, Stateful]) -> list[SavedPart]:
    """What loads a state by a method of its own, which may refuse it."""
    optimizers = zip(replica.optimizers, saved["optimizers"], strict=True)
    found = [
        SavedPart(type(one).__name__, one, partial(run_optimizers.load, one, state))
        for one, state in optimizers
    ]
    if (scaler := replica.scaler) is not None:
        found.append(SavedPart("GradScaler", scaler, partial(scaler.load_state_dict, saved["scaler"])))
    for name, one in others.items():
        load = partial(one.load_state_dict, saved["others"][name])
        found.append(SavedPart(f"{name!r} ({type(one).__name__})", one, load))
    return found


def _checked(replica: Replica, saved: Any, others: Mapping[str, Stateful]) -> dict[str, Any]:
    """What was saved, of optimizers in this rank's order.

    Raises: ConfigError for what was not saved by a run with this model, optimizers and others.
    """
    check_others(others)
    parsed = parse_run(saved)
    _check_model(replica, parsed.model)
    if parsed.others.keys() != others.keys():
        raise ConfigError(
            f"besides the run's own, the state of {sorted(parsed.others)} was saved, and "
            f"{sorted(others)} is given; give load what save was given, by the same names"
        )
    check_schedulers(others, parsed.others, parsed.scheduler_kinds)
    ordered = {**saved, **run_optimizers.as_listed(replica, saved)}
    run_optimizers.check(replica.optimizers, ordered["optimizers"], ordered["optimizer_settings"])
    if (parsed.scaler is None) != (replica.scaler is None):
        had, has = ("no", "a") if parsed.scaler is None else ("a", "no")
        raise ConfigError(f"the saved run had {had} GradScaler, and this one has {has}; attach as it did")
    return ordered


def _check_model(replica: Replica, saved: Mapping[str, Any]) -> None:
    """Names, shapes and dtypes: another model may have the same names."""
    here = held(replica.model_state())
    for name in [*here, *(name for name in saved if name not in here)]:
        ours, theirs = (_kind(state, name) for state in (here, saved))
        if ours != theirs:
            raise ConfigError(
                f"the saved state is of another model: {name} was {theirs}, and is {ours} here; build the "
                "model that was saved"
            )


def _kind(state: Mapping[str, Any], name: str) -> str:
    if name not in state:
        return "not there"
    value = state[name]
    if name.endswith("_extra_state"):  # torch's name for what a module makes as it likes
        return "there"
    return kind(value) if isinstance(value, torch.Tensor) else type(value).__name__
