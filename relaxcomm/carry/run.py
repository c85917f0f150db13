"""The state of a whole run for another number of ranks: a function of what the old ones have saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from relaxcomm.carry.loaders import carried_loaders
from relaxcomm.carry.means import mean, same
from relaxcomm.carry.model import carried_model, carried_optimizer
from relaxcomm.carry.old import Old, context_of, is_settled, plan_of, served_model
from relaxcomm.carry.random_numbers import carried_random
from relaxcomm.carry.slots import Carrier, Held
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import ConfigError
from relaxcomm.monitoring.statistics import SECONDS
from relaxcomm.network.transport import Membership
from relaxcomm.replica.replica import Replica
from relaxcomm.roles import is_buffer
from relaxcomm.step.plan import Plan, Task
from relaxcomm.step.state import RuleState, served_for


def carry(
    states: Sequence[Mapping[str, Any]], membership: Membership, algorithm: Algorithm, replica: Replica
) -> dict[str, Any]:
    """What one of the new ranks goes on from.

    Replicas begin with the mean of all. What becomes of each slot is what the facts of its primitive say, see
    `Carried`. Clocks stay; ranks without a common one go on from the farthest.

    Args:
        states: of all old ranks in rank order, as `Engine.run_state_dict` has given them, on the CPU;
            of optimizers in the new rank's order.
        membership: the new rank among the new ones.
        algorithm: that ran.
        replica: whose names and shapes the state has; nothing of it is changed.

    Raises: ConfigError for what cannot be carried, naming it.
    """
    order = sorted(range(len(states)), key=lambda rank: -states[rank]["engine"]["step"])
    olds = [Old.of(state, algorithm, replica) for state in states]
    carrying = _Carrying(olds, order[0], membership, algorithm, replica)
    lead = states[order[0]]
    first = [states[rank] for rank in order]
    return {
        "model": carrying.model,
        "optimizers": [
            carried_optimizer(theirs, optimizer, replica.names)
            for optimizer, *theirs in zip(
                replica.optimizers, *(one["optimizers"] for one in first), strict=True
            )
        ],
        "optimizer_settings": lead["optimizer_settings"],
        "optimizer_parameters": lead["optimizer_parameters"],
        "scaler": lead["scaler"],
        "engine": carrying.engine(),
        "random": carried_random([state["random"] for state in states], membership),
        "others": _carried_others(first, algorithm),
        "scheduler_kinds": lead["scheduler_kinds"],
    }


def _carried_others(states: Sequence[Mapping[str, Any]], algorithm: Algorithm) -> dict[str, Any]:
    """What nobody knows the meaning of: equal on all ranks, or without a common step that of the farthest."""
    lead = states[0]["others"]
    for name, one in lead.items():
        if algorithm.keeps_step and not all(same(state["others"][name], one) for state in states):
            raise ConfigError(
                f"the state of {name!r} differs between the {len(states)} workers that saved it, so nobody "
                "can say what becomes of it with another number; give it a method carry_state_dicts(states) "
                f"that says so, or start {len(states)} workers"
            )
    return dict(lead)


class _Carrying:
    """The engine's state of a new rank.

    Args:
        olds: what the old ranks have saved, in rank order.
        lead: which of them has come farthest.
        membership: the new rank.
        algorithm: that ran.
        replica: what is trained.
    """

    def __init__(
        self, olds: Sequence[Old], lead: int, membership: Membership, algorithm: Algorithm, replica: Replica
    ) -> None:
        self._olds, self._membership, self._algorithm = olds, membership, algorithm
        self._lead: Mapping[str, Any] = olds[lead].state["engine"]
        self._engines = [old.state["engine"] for old in olds]
        self.model = carried_model(olds, lead, replica)
        self._plan: Plan = plan_of(algorithm, replica, self.model, self._lead)
        self._carrier = Carrier(len(olds), membership)

    def engine(self) -> dict[str, Any]:
        """All of it."""
        rank, size = self._membership.rank, self._membership.world_size
        tasks = list(self._plan.every_task)
        services = {task: found for task in tasks if (found := self._service(task)) is not None}
        rounds = {(rule, unit): count for rule, unit, count in self._lead["rounds"]}
        clients = {k: v for one in self._engines for k, v in one["client_states"].items()}
        return {
            **self._lead,
            **{"rank": rank, "world_size": size},
            "slots": [[*task.key, self._slots(task)] for task in tasks],
            "rounds": [[*task.key, 0 if _serves_anew(task) else rounds[task.key]] for task in tasks],
            "samples": [[*task.key, self._samples(task)] for task in tasks],
            "services": [[*task.key, found] for task, found in services.items()],
            "votes": {**self._lead["votes"], "slots": self._votes()},
            "client_states": {client: held for client, held in clients.items() if client % size == rank},
            "late_gradients": self._late("late_gradients", slice(3, 4)),
            "late_parameters": self._late("late_parameters", slice(4, 6)),
            "statistics": self._statistics(),
            "loaders": carried_loaders([one["loaders"] for one in self._engines]),
        }

    def _slots(self, task: Task) -> dict[str, dict[str, Tensor]]:
        """The slots of all primitives of a rule, for one bucket."""
        made = {}
        for role, slots in RuleState(task.rule, task.bucket, self._membership).items():
            if any(not is_buffer(slot) for slot in slots):
                olds = [self._held(old, task, role) for old in self._olds]
                made[role] = self._carrier.of_task(task, role, olds, slots)
        return made

    def _held(self, old: Old, task: Task, role: str) -> Held:
        """What an old rank holds; where services hold the model, all ranks move on from that."""
        held = old.slots[task.key].get(role, {})
        base = old.base(task) if role == "payload" else None
        whole = None if base is None else served_model(self._olds, task)
        return held if base is None or whole is None else {**held, base[0]: whole.to(base[1].dtype)}

    def _samples(self, task: Task) -> int:
        """Trained on since a rule exchanged a bucket last, on average over the old ranks."""
        counts = [count for one in self._engines for *key, count in one["samples"] if tuple(key) == task.key]
        return int(sum(counts) // len(counts))

    def _service(self, task: Task) -> dict[str, Tensor] | None:
        """What the new rank answers with for a bucket."""
        rule, rank, numel = task.rule, self._membership.rank, task.bucket.numel
        served = served_for(task, context_of(rule, self._membership))
        if served is None:
            return None
        made = served.service.export()
        for name in made:
            held = [old.services[task.key][name] for old in self._olds]
            how, owner = rule.exchange.exported(rule.outer).get(name), repr(rule.exchange)
            if how == "part":
                made[name] = self._carrier.cut(self._carrier.joined(owner, name, held, numel), numel, rank)
            elif how != "fresh":
                made[name] = self._carrier.one(owner, name, how, held)
        return made

    def _votes(self) -> list[dict[str, Tensor]]:
        """The slots of the triggers on which the ranks vote."""
        made = []
        for index, trigger in enumerate(self._plan.votes):
            olds = [one["votes"]["slots"][index] for one in self._engines]
            made.append(self._carrier.wholes(repr(trigger), trigger.facts.slots, olds, trigger.init_vote()))
        return made

    def _late(self, what: str, tensors: slice) -> list[list[Any]]:
        """Results on their way, which all ranks wait for; those that are new parameters are in the model.

        Args:
            what: of the saved state.
            tensors: where they lie in it; before them is what is equal on all ranks, behind them are counts.

        Raises: ConfigError where ranks wait for different ones.
        """
        rules, size = self._algorithm.rules, len(self._engines)
        left = [
            [
                late
                for late in one[what]
                if what == "late_gradients" or not (late[2] or is_settled(rules[late[1]]))
            ]
            for one in self._engines
        ]
        keys = [[tuple(late[: tensors.start]) for late in theirs] for theirs in left]
        if any(theirs != keys[0] for theirs in keys):
            raise ConfigError(
                f"the {len(left)} workers that were saved wait for different results ({what}), so they "
                f"cannot be carried; start {len(left)} workers"
            )
        return [
            [
                *late[0][: tensors.start],
                *(mean(held).clone() for held in zip(*(one[tensors] for one in late), strict=True)),
                *(sum(held) // size for held in zip(*(one[tensors.stop :] for one in late), strict=True)),
            ]
            for late in zip(*left, strict=True)
        ]

    def _statistics(self) -> dict[str, Any]:
        """Steps are kept, of times the mean; samples and bytes of all are shared out, in whole numbers."""
        size, counts = self._membership.world_size, [one["statistics"] for one in self._engines]
        lead = self._lead["statistics"]
        rules = {rule: None for one in counts for rule in one["bytes_by_rule"]}
        by_rule = {
            rule: tuple(
                sum(one["bytes_by_rule"].get(rule, (0, 0))[way] for one in counts) // size for way in (0, 1)
            )
            for rule in rules
        }
        shares = {name: sum(one[name] for one in counts) // size for name in lead if name != "bytes_by_rule"}
        kept = {name: lead[name] for name in _KEPT}
        means = {name: sum(one[name] for one in counts) / len(counts) for name in SECONDS}
        return {**shares, **kept, **means, "bytes_by_rule": by_rule}


_KEPT = ("steps", "synchronisations")


def _serves_anew(task: Task) -> bool:
    """Whether its service begins anew, and with it the number of rounds that it knows."""
    return "fresh" in task.rule.exchange.facts.service.values()
