"""From one generation of ranks to the next: what a rank takes along, and who is right."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from relaxcomm.carry.slots import grown, is_of_part, policies
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.engine.membership.parcels import receive_shared
from relaxcomm.network.byte_counters import RECOVERY
from relaxcomm.network.operations import AllReduce, Label
from relaxcomm.replica import sent_model, sent_optimizers
from relaxcomm.roles.carried import Carried, share_of
from relaxcomm.step import replicas
from relaxcomm.step.bound import Bound
from relaxcomm.step.kept_slots import Slots
from relaxcomm.step.model_means import gathered
from relaxcomm.step.plan import Task
from relaxcomm.step.world import World
from relaxcomm.tensors.digest import digest


def rebound(old: Bound, world: World) -> Bound:
    """Bind the algorithm among other ranks, with what this rank has kept."""
    new = Bound(old.algorithm, old.replica, world, old.norms)
    if old.plan.buckets is not None:
        new.lay_out_like(old.plan.buckets)
    _take_along(old, new)
    new.votes.take_along(old.votes)
    new.controllers.restore(old.controllers.export())
    return new


def shared_digest(bound: Bound) -> str:
    """The digest of what should be the same on all ranks."""
    return digest(_shared(bound))


def send_shared(bound: Bound, root: int) -> None:
    """Let all have what one rank has of what should be the same everywhere.

    Args:
        bound: among the ranks now.
        root: who has it.

    Raises: ConfigError, on a rank whose optimizers are others than the root's, or cannot be sent.
    """
    replica, shared = bound.replica, list(shared_slots(bound))
    mine: dict[str, Any] = {
        "slots": [{name: slots[name] for name in names} for slots, names in shared],
        "values": bound.controllers.export(),
        "rounds": [count for _, count in sorted(bound.state.rounds.items())],
    }
    if not bound.algorithm.lets_replicas_differ:
        # Without buffers, each rank's own: no rule that keeps replicas equal averages them.
        mine["parameters"] = sent_model.values(replica.parameters)
        mine["optimizers"] = sent_optimizers.states(replica)
    sent = receive_shared(bound.world, root, mine)
    if bound.world.rank == root:
        return
    for (slots, _), values in zip(shared, sent["slots"], strict=True):
        slots.restore(values)
    bound.controllers.restore(sent["values"])
    bound.state.rounds.update(zip(sorted(bound.state.rounds), sent["rounds"], strict=True))
    if "parameters" in sent:
        sent_model.fill(replica.parameters, sent["parameters"])
        sent_optimizers.load(replica, sent["optimizers"])


def forget_moves(bound: Bound) -> None:
    """What this rank has added up for a round is in a result that others have applied."""
    for task in tasks_of(bound):
        payload, known = bound.state.slots[task.key]["payload"], policies(task, "payload")
        fresh = task.rule.payload.init(task.bucket)
        payload.restore({name: fresh[name] for name in payload if known.get(name) == "sum"})


def begin_anew(bound: Bound, joined: Collection[int]) -> None:
    """Make replicas equal, and begin anew what rules keep of neighbours, sums or shares that are gone.

    Args:
        bound: among the ranks now.
        joined: those among them that were not there before.
    """
    if makes_equal(bound.algorithm):
        replicas.equalise(bound, without=joined)
        bound.state.set_up(bound.plan, bound.clock.context)
    elif joined and bound.algorithm.lets_replicas_differ:
        replicas.admit(bound, joined)
    _take_means(bound)


def makes_equal(algorithm: Algorithm) -> bool:
    """Whether replicas become equal where ranks change."""
    return any(_begins_anew(rule) and rule.exchange.facts.collective for rule in algorithm.rules)


def _take_means(bound: Bound) -> None:
    """Let means of shares be those over the ranks now: a lost rank's share has gone with it."""
    for task in tasks_of(bound):
        slots, known = bound.state.slots[task.key]["compressor"], policies(task, "compressor")
        for mean in (one for one in sorted(slots) if known.get(one) == "mean of shares"):
            operation = AllReduce(slots[share_of(known, mean)].clone())
            slots[mean] = bound.world.run(operation, Label(0, RECOVERY, task.bucket.index))
        slots.commit(True)


def _begins_anew(rule: Rule) -> bool:
    """Whether it needs equal replicas where ranks change."""
    facts = rule.exchange.facts
    return facts.needs_fixed_graph or facts.follows_parameters


def tasks_of(bound: Bound) -> Iterator[Task]:
    """The tasks that have slots which other ranks do not make meaningless."""
    for task in bound.plan.every_task:
        is_served = not task.rule.exchange.facts.collective  # see `Handover`
        if task.key in bound.state.slots and not (is_served or _begins_anew(task.rule)):
            yield task


def wholes(bound: Bound, task: Task) -> Iterator[tuple[str, Slots, dict[str, Carried | None]]]:
    """The slots of a task by role, and what becomes of those that each rank has as a whole."""
    for role, slots in bound.state.slots[task.key].items():
        known = policies(task, role)
        yield role, slots, {name: known.get(name) for name in slots if not is_of_part(task, role, name)}


def _take_along(old: Bound, new: Bound) -> None:
    """Keep the slots that each rank has as a whole."""
    for task in tasks_of(new):
        state, before = new.state.slots[task.key], old.state.slots[task.key]
        for role, slots, known in wholes(new, task):
            for name, how in known.items():
                slots[name] = grown(before[role][name], how, before=old.world.size, now=new.world.size)
        state.commit(True)
        new.state.rounds[task.key] = old.state.rounds[task.key]


def _shared(bound: Bound) -> Iterator[Tensor]:
    """What should be the same on all ranks."""
    if not bound.algorithm.lets_replicas_differ:
        yield from (flat for _, flat in gathered(bound.replica.pack(bound.replica.parameters)))
    for slots, names in shared_slots(bound):
        yield from (slots[name] for name in names)
    values, rounds = bound.controllers.export(), sorted(bound.state.rounds.items())
    yield torch.tensor([values[name] for name in sorted(values)], dtype=torch.float64)
    yield torch.tensor([count for _, count in rounds])


def shared_slots(bound: Bound) -> Iterator[tuple[Slots, list[str]]]:
    """What rules keep equal on all ranks, where these see the same results."""
    for task in tasks_of(bound):
        if task.rule.exchange.facts.same_result:
            for _, slots, known in wholes(bound, task):
                yield slots, sorted(name for name, how in known.items() if how == "equal")
