"""The optimizers' part of a saved run: what they keep under names of their own goes through as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from pydantic import ValidationError
from torch.optim import Optimizer

from relaxcomm.engine.saved_state.run_schema import OptimizerState
from relaxcomm.engine.saved_state.state_schema import fault_of
from relaxcomm.errors import ConfigError
from relaxcomm.replica import optimizer_order
from relaxcomm.replica.named_parameters import param_groups
from relaxcomm.replica.replica import Replica
from relaxcomm.replica.sharding import PARAM_NAMES, held, load_held
from relaxcomm.system.telling import tell

_HOW = ("foreach", "fused")  # the same step is computed, which moments do not tell
_TOLD = ("lr", "momentum", "betas", "weight_decay", "eps")  # which users choose, and steps leave as they are
_Groups: TypeAlias = Sequence[Mapping[str, Any]]


def export(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """Their states, with what this rank holds of sharded tensors.

    Raises: ConfigError for one that could not be loaded again.
    """
    states = [held(optimizer.state_dict()) for optimizer in optimizers]
    for optimizer, state in zip(optimizers, states, strict=True):
        try:
            OptimizerState.model_validate(state)
        except ValidationError as error:
            what = fault_of(error, OptimizerState)
            raise ConfigError(
                f"the state of {type(optimizer).__name__} could not be loaded again: {what}; let "
                "its state_dict() give for each parameter a dict by names, or attach with another optimizer"
            ) from None
    return states


def settings(optimizers: Sequence[Optimizer]) -> dict[int, list[str]]:
    """Names of what each was made with; a wrapper may have none."""
    return {index: list(getattr(one, "defaults", None) or ()) for index, one in enumerate(optimizers)}


def as_listed(replica: Replica, saved: Mapping[str, Any]) -> dict[str, Any]:
    """What a run has saved of its optimizers, in the order in which they and their parameters are here.

    Raises: ConfigError where they are not as many, or hold other groups of parameters, or hold them in
        another order while something else that was saved keeps a list of as many, as schedulers do.
    """
    states, theirs, ours = saved["optimizers"], saved["optimizer_parameters"], optimizer_order.listed(replica)
    if len(states) != len(ours):
        raise ConfigError(f"{len(states)} optimizers were saved, and {len(ours)} are attached")
    places = optimizer_order.counterparts(ours, theirs, "the run that was saved")
    for index, (names, place) in enumerate(zip(ours, places, strict=True)):
        if not optimizer_order.groups_alike(names, theirs[place]):
            _check_others(index, names, theirs[place], saved["others"])
    return {
        "optimizers": [
            optimizer_order.as_listed(replica, names, theirs[place], states[place])
            for names, place in zip(ours, places, strict=True)
        ],
        "optimizer_settings": {
            index: saved["optimizer_settings"].get(place, []) for index, place in enumerate(places)
        },
        "optimizer_parameters": ours,
    }


def _check_others(
    index: int, ours: optimizer_order.Listed, theirs: optimizer_order.Listed, others: Mapping[str, Any]
) -> None:
    """Refuse groups in another order beside what may keep rates by their places, whoever wrote it."""
    was, here = (", ".join(names[0] if names else "none" for names in one) for one in (theirs, ours))
    for name, state in others.items():
        if _has_list(state, len(ours)):
            raise ConfigError(
                f"the groups of optimizer {index} began with {was} as they were saved, and begin with {here} "
                f"here, and {name!r} keeps a list of {len(ours)}, as schedulers keep rates by the places of "
                "groups; list groups as they were saved"
            )


def _has_list(state: Any, length: int) -> bool:
    """Whether a list of so many is anywhere in a state; tuples in one, as of steps and losses, are none."""
    if isinstance(state, Mapping):
        return any(_has_list(one, length) for one in state.values())
    if not isinstance(state, list | tuple):
        return False
    return len(state) == length or any(_has_list(one, length) for one in state if not isinstance(one, tuple))


def load(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Have it go on from its state, and compute steps as it was made to: GradScaler takes it by that."""
    pairs = zip(optimizer.param_groups, saved["param_groups"], strict=True)
    groups = [{**theirs, **{key: ours[key] for key in _HOW if key in ours}} for ours, theirs in pairs]
    load_held(optimizer, {**saved, "param_groups": groups})


def check(
    optimizers: Sequence[Optimizer],
    saved: Sequence[Mapping[str, Any]],
    made_with: Mapping[int, Sequence[str]],
) -> None:
    """Raise ConfigError where what was saved of optimizers has groups with other settings.

    Args:
        optimizers: that are attached.
        saved: their states, `as_listed`.
        made_with: the `settings` of those that were saved, if they are known.
    """
    for index, (optimizer, state) in enumerate(zip(optimizers, saved, strict=True)):
        here = optimizer.state_dict()["param_groups"]
        _check_groups(index, optimizer, here, state["param_groups"], made_with[index])
        known = {index for group in here for index in group["params"]}
        foreign = {index for index in state["state"] if isinstance(index, int)} - known
        if foreign:
            raise ConfigError(
                f"the saved state of optimizer {index} is of parameters that it does not have, such as "
                f"{min(foreign)}; load another checkpoint"
            )


def _check_groups(
    index: int, optimizer: Optimizer, here: _Groups, saved: _Groups, made_with: Sequence[str]
) -> None:
    """Refuse other groups than those that were saved, which take their place.

    Groups gain settings in training, such as of a schedule that begins then: those that only the saved ones
    have are loaded, and those that only these have would be lost. What the saved optimizer was made with and
    this one does not know tells another method, to which the saved moments mean nothing; names of classes
    would not tell it, as wrappers and subclasses have others.
    """
    name = type(optimizer).__name__
    for ours, theirs in zip(map(_settings, here), map(_settings, saved), strict=True):
        needed = {*ours, *made_with} - {PARAM_NAMES}
        differ = [key for key in {**ours, **theirs} if key in needed and theirs.get(key) != ours.get(key)]
        if differ:
            was, are = ({key: one.get(key, "not there") for key in differ} for one in (theirs, ours))
            raise ConfigError(
                f"the saved state of optimizer {index} has groups of {str(was)[:500]}, and {name} has "
                f"{str(are)[:500]}; make the optimizer that was saved"
            )


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The indices of a group's parameters, and the kinds of its settings, whose values may differ."""
    kinds = {key: _kind(value) for key, value in group.items() if key not in _HOW}
    return {**kinds, "params": group["params"]}


def _kind(value: object) -> str:
    if isinstance(value, bool):  # which torch's steps refuse in the place of numbers
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "list" if isinstance(value, list | tuple) else type(value).__name__  # YAML has no tuples


@contextmanager
def telling_of_options(optimizers: Sequence[Optimizer], *, rank: int) -> Iterator[None]:
    """Tell of optimizers' options that differ from those of a saved run, which is loaded in here.

    Args:
        optimizers: that are attached.
        rank: 0 tells.
    """
    given = [_options(group) for group in param_groups(optimizers)]
    yield
    groups = list(zip(given, map(_options, param_groups(optimizers)), strict=True))
    for name in _TOLD if rank == 0 else ():
        pairs = [(ours[name], saved[name]) for ours, saved in groups if name in ours and name in saved]
        differ = [(ours, saved) for ours, saved in pairs if ours != saved]
        if differ:
            (ours, saved), others = differ[0], len(differ) - 1
            by_hand = "until the loop sets another, " if name == "lr" else ""
            tell(
                f"the optimizer goes on with {name} {saved}, as it was saved, {by_hand}not with {ours}, as "
                f"it was made here{f'; so do {others} other groups with theirs' if others else ''}"
            )


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """What stays as it is: the first learning rate where a schedule moves it, no momentum that one cycles."""
    cycled = ("momentum", "betas") if "max_momentum" in group else ()  # by OneCycleLR and CyclicLR
    known = {**group, "lr": group.get("initial_lr", group.get("lr"))}
    return {name: known[name] for name in _TOLD if name in known and name not in cycled}
