"""What one of the old ranks has saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.network.transport import Membership, Service
from relaxcomm.replica.replica import Replica
from relaxcomm.roles import Context
from relaxcomm.step.plan import Plan, Task, TaskKey
from relaxcomm.step.state import served_for
from relaxcomm.tensors.items import Item


@dataclass(frozen=True)
class Old:
    """What one of the old ranks has saved, with buckets of its own parameters.

    Args:
        membership: of that rank.
        state: all of it.
        plan: on its own parameters.
        slots: by rule and bucket, role and name.
        services: by rule and bucket.
    """

    membership: Membership
    state: Mapping[str, Any]
    plan: Plan
    slots: Mapping[TaskKey, Mapping[str, Mapping[str, Tensor]]]
    services: Mapping[TaskKey, Mapping[str, Tensor]]

    @classmethod
    def of(cls, state: Mapping[str, Any], algorithm: Algorithm, replica: Replica) -> Old:
        """What one rank has saved."""
        engine = state["engine"]
        return cls(
            Membership(engine["rank"], engine["world_size"]),
            state,
            plan_of(algorithm, replica, state["model"], engine),
            {(rule, unit): slots for rule, unit, slots in engine["slots"]},
            {(rule, unit): service for rule, unit, service in engine["services"]},
        )

    def tasks_of(self, unit: int) -> Iterator[Task]:
        """The rules on a bucket."""
        return (task for task in self.plan.every_task if task.bucket.index == unit)

    def came(self, task: Task) -> Tensor | None:
        """What services have given for a bucket that is not applied yet."""
        late = self.state["engine"]["late_parameters"]
        return next((one[4] for one in late if (one[1], one[3]) == task.key and not one[2]), None)

    def late(self, *, buffers: bool) -> Iterator[tuple[TaskKey, Tensor]]:
        """By how much results on their way will move parameters, or buffers, wherever these are by then."""
        for _, rule, of_buffers, unit, result, snapshot, *_ in self.state["engine"]["late_parameters"]:
            if of_buffers is buffers and (buffers or is_settled(self.plan.algorithm.rules[rule])):
                yield (rule, unit), result[: snapshot.numel()].double() - snapshot.double()

    def service(self, task: Task) -> Service | None:
        """What it answered with for a bucket, if it did."""
        saved = self.services.get(task.key)
        if saved is None:
            return None
        served = served_for(task, context_of(task.rule, self.membership))
        assert served is not None, "a state fits its algorithm"
        served.service.restore(saved)
        return served.service

    def base(self, task: Task) -> tuple[str, Tensor] | None:
        """The point from which a rule moves, and the slot that holds it."""
        slots = dict(self.slots[task.key].get("payload", {}))
        base = task.rule.payload.base(context_of(task.rule, self.membership), task.bucket, slots)
        return next(((name, value) for name, value in slots.items() if value is base), None)


def is_settled(rule: Rule) -> bool:
    """Whether its late results are new parameters, which need nothing else to be written."""
    facts = rule.payload.facts
    averages = facts.is_model and not facts.keeps_local and rule.outer.facts.averages
    return averages or rule.exchange.facts.returns == "base"


def served_model(olds: Sequence[Old], task: Task) -> Tensor | None:
    """What the services of all ranks hold of a bucket together, or None where they hold no model."""
    if task.rule.exchange.facts.returns != "base":
        return None
    services = [
        old.service(one) for old in olds for one in old.tasks_of(task.bucket.index) if one.index == task.index
    ]
    parts = [None if service is None else service.part() for service in services]
    return torch.cat([part for part in parts if part is not None])


def context_of(rule: Rule, membership: Membership) -> Context:
    """What primitives may know of a rank that does not run."""
    return Context(step=0, start=rule.active[0], membership=membership, learning_rate=lambda bucket: 0.0)


def plan_of(
    algorithm: Algorithm, replica: Replica, model: Mapping[str, Any], engine: Mapping[str, Any]
) -> Plan:
    """What an algorithm does to parameters that a state holds."""
    items = [Item(item.name, _like(item.tensor, model[item.name])) for item in replica.parameters]
    plan = Plan(algorithm, items)
    if engine["layout"] is not None:
        plan.lay_out(engine["layout"], engine["strides"])
    return plan


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    """A value that lies in memory as the parameter does, and in the CPU's."""
    if value.stride() == parameter.stride() and value.device.type == "cpu":
        return value.detach()
    return torch.empty_like(parameter, device="cpu", requires_grad=False).copy_(value.detach())
