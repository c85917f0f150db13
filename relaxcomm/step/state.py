"""What rules keep from step to step: written in a window, kept only if the whole window is good."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from relaxcomm.composition.rule import Rule
from relaxcomm.network.transport import Membership, Service
from relaxcomm.roles import Context, Served, is_buffer
from relaxcomm.roles.exchange import slots_in_run
from relaxcomm.roles.payload import as_read
from relaxcomm.step.kept_slots import Slots
from relaxcomm.step.plan import Plan, Task, TaskKey
from relaxcomm.step.world import World
from relaxcomm.tensors.buckets import Bucket


class RuleState(dict[str, Slots]):
    """The slots of all primitives of a rule for one bucket, by role; the exchange's beside the compressor's.

    Args:
        rule: whose primitives.
        bucket: the bucket.
        membership: of the ranks among whom parts may be shared out.
    """

    def __init__(self, rule: Rule, bucket: Bucket, membership: Membership) -> None:
        others = {r: made for r, made in rule.primitives.items() if r not in ("compressor", "exchange")}
        if rule.exchange.facts.applies_outer:  # whose slots its services keep
            del others["outer"]
        super().__init__({role: Slots(made.init(bucket), repr(made)) for role, made in others.items()})
        coding = slots_in_run(rule.exchange, as_read(rule.payload, bucket), rule.compressor, membership)
        self["compressor"] = Slots(coding, f"{rule.exchange!r} with {rule.compressor!r}")
        self.slotted = {role: slots for role, slots in self.items() if slots}
        """What can be assigned at all."""

    def commit(self, good: bool | Tensor) -> None:
        """Keep or drop the assignments of all primitives."""
        for slots in self.slotted.values():
            slots.commit(good)

    def export(self) -> dict[str, dict[str, Tensor]]:
        """A copy of every slot by role and name."""
        exported = {role: slots.export() for role, slots in self.items()}
        return {role: slots for role, slots in exported.items() if slots}

    def restore(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put exported slots back."""
        for role, slots in saved.items():
            self[role].restore(slots)

    @property
    def has_slots(self) -> bool:
        """Whether a result that is not finite would spoil what is kept."""
        return any(not is_buffer(slot) for slots in self.values() for slot in slots)


class State:
    """What all rules keep: slots, how often each has exchanged, and the services that answer for it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.slots: dict[TaskKey, RuleState] = {}
        self.rounds: dict[TaskKey, int] = {}
        self._counted: dict[TaskKey, int] = {}  # samples that had been trained on at the last exchange
        self.services: dict[TaskKey, Service] = {}
        self._exchanged_before: frozenset[int] = frozenset()  # rules, among other ranks

    def set_up(self, plan: Plan, context: Callable[[Rule], Context]) -> None:
        """Make the slots of every task anew, and its service if there is none."""
        for task in plan.every_task:
            key = task.key
            self.slots[key] = RuleState(task.rule, task.bucket, self._world.membership)
            self.rounds.setdefault(key, 0)
            self._counted.setdefault(key, self._world.statistics.trained_on)
            if key not in self.services and (served := served_for(task, context(task.rule))) is not None:
                self.services[key] = served.service
                where = str(task.index), task.bucket.index
                self._world.transport.serve(where, served.service, served.request, served.reply)

    def begin_anew(self, plan: Plan, context: Callable[[Rule], Context]) -> None:
        """After `set_up`: as if nothing had been exchanged, and nobody had asked a service."""
        self._exchanged_before = frozenset()
        for task in plan.every_task:
            self.rounds[task.key], self._counted[task.key] = 0, self._world.statistics.trained_on
            if (served := served_for(task, context(task.rule))) is not None:
                self.services[task.key].restore(served.service.export())

    def of(self, task: Task) -> RuleState:
        """The slots of a task; buffers are averaged without a memory, by the weight of the rule that they
        go with if it has one."""
        if not task.of_buffers:
            return self.slots[task.key]
        made = RuleState(task.rule, task.bucket, self._world.membership)
        weights = [state["payload"] for (index, _), state in self.slots.items() if index == task.index]
        for name, slot in made["payload"].items():
            made["payload"][name] = weights[0][name].to(slot.dtype)
        return made

    def next_round(self, task: Task) -> int:
        """How often a rule has exchanged a bucket before; from now on once more."""
        before = self.rounds[task.key]
        self.rounds[task.key] = before + 1
        return before

    def next_samples(self, task: Task) -> int:
        """How many samples this rank has trained on since the rule exchanged a bucket; now it begins anew."""
        before, now = self._counted[task.key], self._world.statistics.trained_on
        self._counted[task.key] = now
        return max(1, now - before)

    def give_up(self) -> None:
        """Drop what was written in a window that is not kept."""
        for state in self.slots.values():
            state.commit(False)

    def release(self) -> None:
        """Let go of what is kept, from which nobody goes on."""
        self.slots.clear()
        self.services.clear()

    @property
    def exchanged(self) -> frozenset[int]:
        """The rules that have exchanged anything since this algorithm began."""
        return self._exchanged_before | {rule for (rule, _), count in self.rounds.items() if count}

    def follow(self, before: State) -> None:
        """Go on from what the same rules have kept among other ranks; rounds of services are counted anew."""
        self._exchanged_before = before.exchanged

    def rests(self, plan: Plan) -> list[tuple[Bucket, Tensor]]:
        """What exchanges hold of the mean of all ranks beside this rank's parameters, by bucket."""
        found = []
        for task in (task for task in plan.every_task if task.key in self.slots):
            rest = task.rule.exchange.rest(self.slots[task.key]["compressor"])
            if rest is not None:
                found.append((task.bucket, rest))
        return found

    def take_rest(self, plan: Plan) -> None:
        """Add to the parameters what services still hold for this rank, when nobody asks them any more."""
        for (_, unit), service in self.services.items():
            if (rest := service.rest()) is not None:
                bucket = plan.bucket(unit)
                bucket.add(rest.to(bucket.device, bucket.dtype))

    def export(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "slots": [[*key, state.export()] for key, state in self.slots.items()],
            "rounds": [[*key, count] for key, count in self.rounds.items()],
            "samples": [
                [*key, self._world.statistics.trained_on - counted] for key, counted in self._counted.items()
            ],
            "services": [[*key, service.export()] for key, service in self.services.items()],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Put exported state back."""
        for rule, unit, slots in saved["slots"]:
            self.slots[rule, unit].restore(slots)
        for rule, unit, count in saved["rounds"]:
            self.rounds[rule, unit] = count
        for rule, unit, samples in saved["samples"]:
            self._counted[rule, unit] = self._world.statistics.trained_on - samples
        for rule, unit, service in saved["services"]:
            self.services[rule, unit].restore(service)


def served_for(task: Task, cx: Context) -> Served | None:
    """What its exchange has ranks answer to each other, made anew."""
    rule = task.rule
    return rule.exchange.serve(cx, as_read(rule.payload, task.bucket), rule.compressor, rule.outer)
