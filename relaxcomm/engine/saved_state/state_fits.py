"""Whether a saved state can be this rank's, in this run: compared with what such a run makes itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.engine.saved_state.state_schema import EngineState, Layout
from relaxcomm.errors import ConfigError
from relaxcomm.network.transport import Membership
from relaxcomm.step.bound import Bound
from relaxcomm.step.kept_slots import Slots
from relaxcomm.step.plan import Plan, Task, TaskKey
from relaxcomm.step.state import RuleState, served_for
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.memory_order import Strides, are_dense

_REMEDIES = {
    "rank": "load the state that this rank saved",
    "algorithm": "configure the algorithm that was saved, with `phases` to go on with another one later, or "
    "go on from another checkpoint; a script that had switched to it calls engine.switch(…) with it before "
    "it loads",
}


def check_fits(saved: EngineState, algorithm: Algorithm, bound: Bound, membership: Membership) -> None:
    """Refuse a state of another rank, algorithm or model, or a part of it that cannot have been saved.

    Args:
        saved: of which the form is known to be right.
        algorithm: that runs in such a state.
        bound: of this run.
        membership: of the rank that it should be of.

    Raises: ConfigError.
    """
    if saved.world_size != membership.world_size:
        raise ConfigError(
            f"the saved engine state has world_size {saved.world_size}, this run has "
            f"{membership.world_size}; relaxcomm.checkpoint.load and engine.carry_run_state_dicts go on with "
            "another number of workers"
        )
    here = {"rank": membership.rank, "algorithm": repr(algorithm)}
    for key, value in here.items():
        if getattr(saved, key) != value:
            raise ConfigError(
                f"the saved engine state has {key} {getattr(saved, key)!r}, this run has {value!r}; "
                f"{_REMEDIES[key]}"
            )
    tasks: dict[TaskKey, Task] = {}
    if saved.layout is not None:
        _check_layout(saved.layout, saved.strides, algorithm, bound)
        plan = Plan(algorithm, bound.replica.parameters)
        plan.lay_out(saved.layout, saved.strides)
        tasks = {task.key: task for task in plan.every_task}
    _check_slots(saved, tasks, membership)
    _check_services(saved, tasks, bound, membership)
    _check_votes(saved, algorithm)
    _check_late(saved, tasks, algorithm, bound)
    _check_clients(saved, bound)


def _damaged(what: str) -> ConfigError:
    return ConfigError(f"the saved engine state is damaged: {what}; load another checkpoint")


def _of_another_model(what: str) -> ConfigError:
    return ConfigError(
        f"the saved engine state is of a model with other shapes or another dtype: {what}; build the model "
        "as it was saved, or load another checkpoint"
    )


def _check_layout(
    layout: Layout, strides: list[list[Strides]] | None, algorithm: Algorithm, bound: Bound
) -> None:
    """Every parameter lies in one bucket, with others of its kind, and fills its place."""
    items = {item.name: item for item in bound.replica.parameters}
    if sorted(name for names in layout for name in names) != sorted(items):
        raise ConfigError("the saved engine state is of a model with other trainable parameters")
    for index, names in enumerate(layout):
        kinds = {
            (items[name].tensor.dtype, items[name].tensor.device, tuple(algorithm.covering(name)))
            for name in names
        }
        if len(kinds) != 1:
            raise _damaged(f"bucket {index} holds {len(kinds)} kinds of parameters")
    if strides is None or list(map(len, strides)) != list(map(len, layout)):
        raise _damaged("it has not strides for each parameter")
    for names, found in zip(layout, strides, strict=True):
        for name, one in zip(names, found, strict=True):
            shape = items[name].tensor.shape
            if one is not None and not (len(one) == len(shape) and are_dense(one, shape)):
                raise _of_another_model(
                    f"{name} had the strides {list(one)}, and has the shape {list(shape)} here"
                )


def _check_slots(saved: EngineState, tasks: Mapping[TaskKey, Task], membership: Membership) -> None:
    _check_keys("slots", [(rule, unit) for rule, unit, _ in saved.slots], tasks)
    _check_keys("rounds", [(rule, unit) for rule, unit, _ in saved.rounds], tasks)
    _check_keys("samples", [(rule, unit) for rule, unit, _ in saved.samples], tasks)
    for rule, unit, found in saved.slots:
        task = tasks[rule, unit]
        expected = RuleState(task.rule, task.bucket, membership)
        if unknown := sorted(found.keys() - expected.keys()):
            raise _damaged(f"slots of rule {rule}, bucket {unit} are those of {unknown}")
        for role, slots in expected.items():
            _check_same(slots.owner, found.get(role, {}), slots.saved)


def _check_services(
    saved: EngineState, tasks: Mapping[TaskKey, Task], bound: Bound, membership: Membership
) -> None:
    expected: dict[TaskKey, Mapping[str, Tensor]] = {}
    for key, task in tasks.items():
        cx = bound.clock.context(task.rule).at(membership=membership)
        if (served := served_for(task, cx)) is not None:
            expected[key] = served.service.export()
    _check_keys("services", [(rule, unit) for rule, unit, _ in saved.services], expected)
    for rule, unit, found in saved.services:
        made = tasks[rule, unit].rule
        owner = f"{made.exchange!r} with {made.compressor!r} and {made.outer!r}"
        _check_same(owner, found, expected[rule, unit])


def _check_votes(saved: EngineState, algorithm: Algorithm) -> None:
    triggers = Plan(algorithm, ()).votes
    if len(saved.votes.slots) != len(triggers):
        raise _damaged(f"votes on {len(saved.votes.slots)} triggers, and {len(triggers)} vote")
    for trigger, found in zip(triggers, saved.votes.slots, strict=True):
        _check_same(repr(trigger), found, Slots(trigger.init_vote(), repr(trigger)).saved)
    if any(index >= len(triggers) for index, _, _ in saved.votes.answers):
        raise _damaged("an answer to a trigger that is not there")


def _check_late(
    saved: EngineState, tasks: Mapping[TaskKey, Task], algorithm: Algorithm, bound: Bound
) -> None:
    for _, rule, unit, result, _, _ in saved.late_gradients:
        bucket = _check_result("late_gradients", tasks.get((rule, unit)), "backward", (result,))
        if result.numel() - bucket.numel not in (0, len(bucket.items)):  # whether each was used, behind it
            raise _damaged(f"late_gradients with {kind(result)} for {len(bucket.items)} parameters")
    for _, rule, of_buffers, unit, result, snapshot, _, _ in saved.late_parameters:
        if rule >= len(algorithm.rules):
            raise _damaged(f"late_parameters of rule {rule}, which is not there")
        if of_buffers:
            plan = Plan(algorithm, bound.replica.parameters)
            made = plan.for_buffers(rule, bound.replica.buffers.statistics(), bound.replica.bucket_bytes)
            task = next((one for one in made if one.bucket.index == unit), None)
        else:
            task = tasks.get((rule, unit))
        _check_result("late_parameters", task, "step", (result, snapshot))


def _check_result(what: str, task: Task | None, site: str, tensors: tuple[Tensor, ...]) -> Bucket:
    """A result on its way belongs to a rule that has such, and fills its bucket, which is returned."""
    if task is None or task.rule.delay == 0 or task.rule.payload.facts.site != site:
        raise _damaged(f"{what} of a rule and bucket that have none")
    for tensor in tensors:
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if tensor.dim() != 1 or tensor.numel() < task.bucket.numel or not is_number:
            raise _damaged(f"{what} with {kind(tensor)} for {task.bucket.numel} entries")
    return task.bucket


def _check_clients(saved: EngineState, bound: Bound) -> None:
    names = {item.name for item in bound.replica.parameters}
    for client, states in saved.client_states.items():
        foreign = sorted(states.keys() - names)
        if foreign:
            raise _damaged(f"client {client} has a state of {foreign[0]!r}, which is no parameter")


def _check_keys(what: str, found: list[TaskKey], expected: Mapping[TaskKey, Any]) -> None:
    if sorted(found) != sorted(expected):
        raise _damaged(f"{what} are of {len(found)} rules and buckets, and {len(expected)} have such")


def _check_same(owner: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """What a primitive kept is what it keeps here."""
    kept, keeps = _in_words(found), _in_words(expected)
    if kept == keeps:
        return
    if found.keys() != expected.keys():
        raise ConfigError(
            f"the saved engine state was made by another version of {owner}: it kept {kept}, and this one "
            f"keeps {keeps}; use that version, or load another checkpoint"
        )
    raise _of_another_model(
        f"{owner} kept {kept}, and keeps {keeps} here, unless another version of it has made the state"
    )


def _in_words(slots: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {kind(tensor)}" for name, tensor in sorted(slots.items())) or "nothing"


def kind(tensor: Tensor) -> str:
    """Shape, dtype and layout in words."""
    layout = "" if tensor.layout == torch.strided else f" {tensor.layout}"
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}{layout}"
