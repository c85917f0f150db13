"""What each worker keeps for every other one, over Gloo."""

from __future__ import annotations

from relaxcomm.planner.priced_plan import PricedPlan

_FILES = 1024  # that many systems let a process open
_MANY_THREADS = 64


def too_many(plan: PricedPlan) -> list[str]:
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
