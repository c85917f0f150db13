"""What is to be known of a forecast beside its numbers, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from relaxcomm.composition.rule import Rule
from relaxcomm.planner.priced_plan import PricedPlan
from relaxcomm.planner.replay import Replay
from relaxcomm.planner.two_levels import hierarchical_instead
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.exchanges.exchange_for import exchange_for
from relaxcomm.roles import Awaited
from relaxcomm.system.quantities import bandwidth, data_size, duration, number
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.layout import Layout

_FILES = 1024  # that many systems let a process open
_MANY_THREADS = 64


def remarks_on(replay: Replay, items: Sequence[Item], died_out_seconds: float) -> list[str]:
    """What was assumed, where compression loses, what would be better, and what is not counted.

    Args:
        replay: of the algorithm.
        items: the trainable parameters.
        died_out_seconds: from one time at which all workers are dead at once to the next; infinity for never.
    """
    better = hierarchical_instead(replay.plan.algorithm, items, replay)
    said = [*_assumed(replay), *_losses(replay), *([better] if better else [])]
    said += too_many_connections(replay.plan)
    if died_out_seconds < math.inf:
        said.append(
            f"all workers are dead at once about every {duration(died_out_seconds)}, and begin anew then, "
            "which is not counted: write checkpoint: {path: saved, every_seconds: 600}"
        )
    return said


def _assumed(replay: Replay) -> Iterator[str]:
    """What cannot be known without training."""
    scenario, plan = replay.scenario, replay.plan
    if plan.timetable.last_change:
        yield f"counted from step {plan.timetable.last_change:,} on, from which its rules stay as they are"
    for index, rule in enumerate(plan.algorithm.rules):
        if rule.is_active(plan.timetable.settled_from):
            yield from _assumed_of(rule, index, replay)
    topology, groups = scenario.topology, scenario.links.groups
    if topology.has_groups and groups is not None and topology.groups(scenario.workers) == groups:
        yield f"its groups are those between which links are slow: {[len(one) for one in groups]}"


def _assumed_of(rule: Rule, index: int, replay: Replay) -> Iterator[str]:
    """Likewise of a rule."""
    facts, plan = rule.trigger.facts, replay.plan
    if facts.known == "backward" or facts.needs:
        every = facts.period_steps
        when = "in every step" if every == 1 else f"every {every} steps"
        least = replay.run(without={index})
        yield (
            f"counted as if it exchanged {when}, the most that it can; its trigger decides: if it never did, "
            f"a step would take {duration(least.step_seconds)} and send {data_size(least.sent_bytes)}"
        )
    if facts.known == "event":
        yield f"a round was taken to have {plan.timetable.period} steps of a worker, the mean over all"
    if plan.timetable.is_irregular(rule):
        yield f"its trigger follows no period that is known, so {plan.timetable.cycle:,} steps were counted"
    if len(rule.compressor.phases) > 1:
        since = rule.compressor.phases[-1][0]
        yield f"counted as after its first {since} steps, from which on it codes otherwise"
    if rule.delay == "unbounded" and plan.outlasts_a_step(index, replay.scenario.links):
        yield (
            "exchanges outlast a step, and the next follows when the last is there: how many there are "
            "depends on who asks whom, and when, so the bytes may be a third less or more"
        )
    if _misses_quorum(rule.exchange.awaited(plan.scenario.workers), plan):
        yield (
            "counted as if whoever pushes after a quorum waited for nobody; it waits until a quorum has "
            "pushed again, so steps may take longer, and send less"
        )


def _misses_quorum(awaited: Awaited, plan: PricedPlan) -> bool:
    """Whether some workers push when the model has been moved without them."""
    workers = plan.scenario.workers
    if awaited.workers in (1, workers):
        return False
    return plan.ranks > 1 or (workers % awaited.workers > 0 and not awaited.grace_seconds)


def too_many_connections(plan: PricedPlan) -> list[str]:
    """What of connections and threads a worker has too many, in words.

    Each of Gloo's groups connects all with all: torch's own, one for messages and one for events, another for
    messages to neighbours and inside groups, and two for services, in which a thread waits for each other
    worker.
    """
    others, said = plan.scenario.workers - 1, []
    serving = [index for index, rule in enumerate(plan.algorithm.rules) if rule.exchange.facts.service]
    linked = any(rule.exchange.facts.topology != "complete" for rule in plan.algorithm.rules)
    groups = 3 + 2 * bool(serving) + linked
    if groups * others > _FILES:
        said.append(
            f"each worker has {groups * others:,} connections, {groups} to each other one, over Gloo: more "
            f"than the {_FILES:,} files that many systems let a process open; raise that with ulimit -n"
        )
    threads = others * sum(len(plan.by_rule[index]) for index in serving)
    if threads > _MANY_THREADS:
        said.append(f"each worker has {threads:,} threads for its services, one a bucket and other worker")
    return said


def _losses(replay: Replay) -> Iterator[str]:
    """Of each rule that compresses, where it loses."""
    for index, layout, element_bytes in replay.plan.first_buckets():
        rule = replay.plan.algorithm.rules[index]
        if rule.is_active(replay.plan.timetable.settled_from) and rule.compressor != identity():
            loses = _where_it_loses(replay, index, layout, element_bytes)
            yield from [] if loses is None else [loses]


def _where_it_loses(replay: Replay, index: int, layout: Layout, element_bytes: int) -> str | None:
    """From which bandwidth on a compressor costs more time than it saves."""
    rule, scenario = replay.plan.algorithm.rules[index], replay.scenario
    facts = rule.exchange.facts
    if not facts.collective or facts.topology != "complete" or scenario.workers == 1:
        return None
    short = scenario.cost(rule.exchange, rule.compressor.phases[-1][1], layout, element_bytes)
    full = scenario.cost(exchange_for(identity()), identity(), layout, element_bytes)
    saved = full.sent_bytes - short.sent_bytes
    if saved <= 0:
        return (
            f"compression loses at any bandwidth: among {scenario.workers} workers it sends "
            f"{number(short.sent_bytes / full.sent_bytes)} times what full precision does"
        )
    worked = short.coding_seconds + short.work_seconds - full.work_seconds
    if worked <= 0:
        return None
    here = saved / worked <= scenario.links.slowest.bytes_per_second
    least = float(f"{8 * saved / worked:.1e}") / 8  # two digits, so that many algorithms share one line
    return (
        f"compression loses where a worker's link is faster than {bandwidth(least)}"
        f"{', as it is here' if here else ''}: coding takes {duration(short.coding_seconds)} a bucket"
    )
