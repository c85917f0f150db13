"""From one generation of ranks to the next: what those who are left take along, and who is right."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, cast

import torch
from torch import Tensor

from relaxcomm.composition.rule import Rule
from relaxcomm.errors import CompositionWarning
from relaxcomm.network.operations import Broadcast, Label
from relaxcomm.roles import is_buffer
from relaxcomm.step import replicas
from relaxcomm.step.bound import Bound
from relaxcomm.step.state import Slots
from relaxcomm.step.world import World
from relaxcomm.tensors.digest import digest

RECOVERY = "recovery"
"""The label of what those who are left send to agree."""


@dataclass(frozen=True)
class _Place:
    """Where a rank stands.

    Args:
        next_step: the clock when its step is over.
        shared: a digest of what should be the same on all ranks.
    """

    next_step: int
    shared: str


def follow(old: Bound, world: World, *, in_step: bool) -> Bound:
    """The same algorithm among those who are left; what was on its way is given up.

    A result that some have applied and others have not is given to all: whoever has come farthest sends
    what should be the same everywhere. The clock of a rank in a step stands so that the step, in which
    nothing is exchanged any more, ends where the others' does.

    Args:
        old: before.
        world: those who are left.
        in_step: whether this rank is in a step.
    """
    new = Bound(old.algorithm, old.replica, world, old.norms)
    if old.plan.buckets is not None:
        new.lay_out_as([bucket.names for bucket in old.plan.buckets])
    dropped = _take_along(old, new)
    new.votes.take_along(old.votes)
    new.controllers.restore(old.controllers.export())
    mine = _Place(old.clock.step + in_step, digest(_shared(new)))
    places = cast("list[_Place]", world.gather(mine, RECOVERY))
    farthest = max(range(len(places)), key=lambda rank: places[rank].next_step)
    if len(set(places)) > 1:
        _send(new, farthest)
    new.clock.set(places[farthest].next_step - in_step)
    if any(_begins_anew(rule) for rule in new.algorithm.rules):
        replicas.equalise(new, moments=False)
        new.state.set_up(new.plan, new.clock.context)
    if dropped:
        warnings.warn(
            f"{', '.join(sorted(dropped))} begins anew, since it is kept in parts that other ranks have now",
            CompositionWarning,
            stacklevel=2,
        )
    return new


def _begins_anew(rule: Rule) -> bool:
    """Whether what a rule keeps is of neighbours or sums that are not there any more."""
    facts = rule.exchange.facts
    return facts.needs_fixed_graph or facts.follows_parameters


def _take_along(old: Bound, new: Bound) -> set[str]:
    """Keep the slots that mean the same among other ranks; names of those that do not."""
    dropped = set()
    for place, state in new.state.slots.items():
        rule, before = new.algorithm.rules[place[0]], old.state.slots[place]
        if _begins_anew(rule):
            continue
        for role, slots in state.roles.items():
            dropped |= {f"{name} of {role} {rule.primitives[role]!r}" for name in _copy(before[role], slots)}
        state.commit(True)
        new.state.rounds[place] = old.state.rounds[place]
    return dropped


def _copy(before: Slots, slots: Slots) -> list[str]:
    """Copy what has the same shape; the slots that have not."""
    if {name: value.shape for name, value in before.items()} != {n: v.shape for n, v in slots.items()}:
        return [name for name in before if not is_buffer(name)]
    for name in slots:
        slots[name] = before[name]
    return []


def _shared(bound: Bound) -> Iterator[Tensor]:
    """What should be the same on all ranks."""
    if not bound.algorithm.lets_replicas_differ:
        for bucket in replicas.mean_buckets(bound):
            yield bucket.gather(bucket.empty())
    for slots in _shared_slots(bound):
        yield from (slots[name] for name in sorted(slots) if not is_buffer(name))


def _shared_slots(bound: Bound) -> Iterator[Slots]:
    """Points from which rules move, and outer optimizers' memory, where all ranks see the same results."""
    for place, state in sorted(bound.state.slots.items(), key=itemgetter(0)):
        rule = bound.algorithm.rules[place[0]]
        if rule.exchange.facts.same_result:
            yield state["outer"]
            if rule.payload.facts.has_base:
                yield state["payload"]


def _send(bound: Bound, root: int) -> None:
    """Let all have what one rank has of what should be the same everywhere."""
    replica, shared = bound.replica, list(_shared_slots(bound))
    mine: dict[str, Any] = {"slots": [slots.export() for slots in shared]}
    if not bound.algorithm.lets_replicas_differ:
        mine["model"] = replica.model.state_dict()
        mine["optimizers"] = [optimizer.state_dict() for optimizer in replica.optimizers]
    sent = _broadcast(bound.world, mine, root)
    if bound.world.rank == root:
        return
    for slots, values in zip(shared, sent["slots"], strict=True):
        slots.restore(values)
    if "model" in sent:
        replica.model.load_state_dict(sent["model"])
        for optimizer, state in zip(replica.optimizers, sent["optimizers"], strict=True):
            optimizer.load_state_dict(state)


def _broadcast(world: World, value: Any, root: int) -> Any:
    """A value of one rank's, on all; nothing of what comes is run."""
    content = io.BytesIO()
    if world.rank == root:
        torch.save(value, content)
    sizes = cast("list[int]", world.gather(content.tell(), RECOVERY))
    raw = torch.empty(sizes[root], dtype=torch.uint8)
    if world.rank == root:
        raw = torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
    world.run(Broadcast(raw, root), Label(0, RECOVERY, 0))
    return torch.load(io.BytesIO(raw.numpy().tobytes()), weights_only=True)
