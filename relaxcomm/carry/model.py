"""Parameters, buffers and optimizers for another number of ranks: the mean of all."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from relaxcomm.carry.means import mean
from relaxcomm.carry.old import Old, served_model
from relaxcomm.errors import ConfigError
from relaxcomm.replica.replica import Replica
from relaxcomm.step.held_states import Held, have_means
from relaxcomm.tensors.finiteness import is_finite


def carried_model(olds: Sequence[Old], lead: int, replica: Replica) -> dict[str, Any]:
    """The model's state: the mean of all ranks, with what was on its way to them.

    Where services hold the model, theirs takes its place, less the mean of what ranks have moved and not
    pushed.

    Args:
        olds: all of them, in rank order.
        lead: which of them has come farthest.
        replica: whose parameters and buffers they are.
    """
    first = olds[lead].state["model"]
    trained = _carried_parameters(olds, replica)
    moved = [_moved_buffers(old, replica) for old in olds]
    tied = {_memory(value): trained[key] for key, value in first.items() if key in trained}
    made: dict[str, Any] = {}
    for key, value in first.items():
        if isinstance(value, Tensor) and _memory(value) in tied:
            made[key] = tied[_memory(value)]
        elif isinstance(value, Tensor) and value.is_floating_point():
            held = [old.state["model"][key] for old in olds]
            by = [one.get(key, 0) for one in moved]
            made[key] = mean([a + b for a, b in zip(held, by, strict=True)] if any(moved) else held).to(
                value.dtype
            )
        else:
            made[key] = value
    return made


def with_means(states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """States of a module beside the model, such as an average of it, with means of what is alike on all."""
    kinds = [
        {(key, value.shape, value.dtype) for key, value in one.items() if isinstance(value, Tensor)}
        for one in states
    ]
    means = {key: mean([one[key] for one in states]) for key, *_ in set.intersection(*kinds)}
    return [{**one, **means} for one in states]


def carried_optimizer(
    states: Sequence[Mapping[str, Any]], optimizer: Optimizer, names: Mapping[Tensor, str]
) -> dict[str, Any]:
    """An optimizer's state: the mean of what is kept for each entry of a parameter, and one rank's counts.

    Where it keeps more of a parameter, such as codes with a scale, or ranks keep other shapes, all of that is
    one rank's.

    Args:
        states: of all ranks, of which the first has come farthest.
        optimizer: whose parameters they are of.
        names: of the model's parameters.

    Raises: ConfigError for what is finite on some ranks alone.
    """
    indices = [index for group in states[0]["param_groups"] for index in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    by_index = dict(zip(indices, parameters, strict=True))
    kept: dict[int | str, Any] = {}
    for index in {index: None for state in states for index in state["state"]}:
        held = [state["state"][index] for state in states if index in state["state"]]
        one = by_index.get(index)
        kept[index] = copy.deepcopy(held[0]) if one is None else _moments(held, one, names.get(one, "none"))
    return {**states[0], "state": kept}


def _moments(held: Sequence[Mapping[str, Any]], parameter: Tensor, name: str) -> dict[str, Any]:
    """What is held of a parameter, in tensors of its own: optimizers take them as they are."""
    told = [Held.of(one, parameter) for one in held]
    means: dict[str, Tensor] = {}
    for key in {key: None for one in told for key in one.moments} if have_means(told) else ():
        begun = [one[key] for one, theirs in zip(held, told, strict=True) if key in theirs.moments]
        means[key] = mean(begun).clone()
        if not is_finite(means[key]) and any(finite := [is_finite(one) for one in begun]):
            raise ConfigError(
                f"{key} of {name} is not finite on {finite.count(False)} of the {len(finite)} workers that "
                "hold it, and has no mean; start as many workers as have saved, or go on from an older "
                "checkpoint"
            )
    farthest, _ = max(zip(held, told, strict=True), key=lambda pair: pair[1].steps)
    return {**copy.deepcopy({key: one for key, one in farthest.items() if key not in means}), **means}


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """What parameters that are tied have in common."""
    return (tensor.data_ptr(), tensor.shape) if tensor.numel() else (id(tensor),)


def _carried_parameters(olds: Sequence[Old], replica: Replica) -> dict[str, Tensor]:
    """Each trained parameter by name."""
    buckets = olds[0].plan.buckets
    if buckets is None:  # nothing was exchanged yet
        held = [old.state["model"] for old in olds]
        return {item.name: mean([one[item.name] for one in held]) for item in replica.parameters}
    made: dict[str, Tensor] = {}
    for unit, bucket in enumerate(buckets):
        made.update(zip(bucket.names, bucket.views(_carried_bucket(olds, unit)), strict=True))
    return made


def _carried_bucket(olds: Sequence[Old], unit: int) -> Tensor:
    """The mean of a bucket of parameters."""
    held = []
    for old in olds:
        bucket = old.plan.bucket(unit)
        held.append(bucket.gather(torch.empty(bucket.numel, dtype=bucket.dtype)))
    dtype = held[0].dtype
    beside = [_beside(old, unit) for old in olds]
    if any(beside):
        held = [sum(more, one.double()) for one, more in zip(held, beside, strict=True)]
    whole = next((w for task in olds[0].tasks_of(unit) if (w := served_model(olds, task)) is not None), None)
    return (mean(held) if whole is None else whole + mean(held)).to(dtype)


def _beside(old: Old, unit: int) -> list[Tensor]:
    """What a rank holds of a bucket's mean beside its parameters, each as what it adds to them."""
    found = [by for (_, of), by in old.late(buffers=False) if of == unit]
    for task in old.tasks_of(unit):
        facts, slots = task.rule.exchange.facts, old.slots[task.key].get("compressor", {})
        base, service = old.base(task), old.service(task)
        if facts.returns == "base" and base is not None:
            came = old.came(task)  # from which the rank would have gone on
            found.append(-(base[1] if came is None else came).double())  # the services' model takes its place
        rests = task.rule.exchange.rest(dict(slots)), None if service is None else service.rest()
        found += [rest.double() for rest in rests if rest is not None]
    return found


def _moved_buffers(old: Old, replica: Replica) -> dict[str, Tensor]:
    """By how much results on their way will move a rank's buffers."""
    made: dict[str, Tensor] = {}
    for (rule, unit), moved in old.late(buffers=True):
        tasks = old.plan.for_buffers(rule, replica.buffers.statistics(), replica.bucket_bytes)
        bucket = next(task.bucket for task in tasks if task.bucket.index == unit)
        for name, by in zip(bucket.names, bucket.views(moved), strict=True):
            made[name] = made.get(name, 0) + by
    return made
