"""Whether a network of two levels, such as sites with slow links between, wants a hierarchical exchange."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.config.json_schema import spell
from relaxcomm.errors import CompositionError, TopologyError
from relaxcomm.planner.replay import Replay
from relaxcomm.planner.scenario import Scenario
from relaxcomm.primitives.exchanges.all_reduce import all_reduce
from relaxcomm.primitives.exchanges.hierarchical_all_reduce import hierarchical_all_reduce
from relaxcomm.system.quantities import duration
from relaxcomm.tensors.items import Item
from relaxcomm.topology import complete, hierarchical

_WORTH = 0.98  # of a step's time, above which nothing is said


def hierarchical_instead(algorithm: Algorithm, items: Sequence[Item], replay: Replay) -> str | None:
    """What averaging inside the groups first, and then between them, would save, and how to write it.

    Args:
        algorithm: as it is, on these parameters.
        items: the trainable parameters.
        replay: of it, on links that may have two levels.

    Returns: one sentence; None where the links have no levels, no rule averages over a ring, or nothing is
        saved.
    """
    groups = replay.scenario.links.groups
    rings = any(rule.exchange == all_reduce() for rule in algorithm.rules)
    if groups is None or not rings or algorithm.controllers:
        return None
    rules = tuple(
        replace(rule, exchange=hierarchical_all_reduce()) if rule.exchange == all_reduce() else rule
        for rule in algorithm.rules
    )
    sizes = tuple(len(group) for group in groups)
    topology = hierarchical(sizes=sizes)
    try:
        other = Algorithm(rules, name=algorithm.name)
        other.check_topology(topology)
        instead = Replay(other, items, replace(replay.scenario, topology=topology)).run().step_seconds
    except (CompositionError, TopologyError):
        return None
    now = replay.run().step_seconds
    if instead > _WORTH * now:
        return None
    return (
        f"{len(groups)} groups of workers have slow links between them: averaged inside each first, then "
        f"between them, a step takes {duration(instead)} instead of {duration(now)}, "
        f"{now / instead:.3g} times as fast; write "
        f"topology: {{hierarchical: {{sizes: {list(sizes)}}}}} and {in_yaml(rules)}"
    )


def with_groups_of_links(algorithm: Algorithm, scenario: Scenario) -> Scenario:
    """The groups between which links are slow are those of an algorithm that needs some and has none.

    Example:
        >>> from relaxcomm import Link
        >>> from relaxcomm.planner.scenario import StepTimes
        >>> from relaxcomm.planner.sites import SiteLinks
        >>> from relaxcomm_algorithms.hierarchical_local_sgd import hierarchical_local_sgd
        >>> links = SiteLinks(6, 2, Link(bytes_per_second=1e9), Link(0.01, 1e7))
        >>> with_groups_of_links(hierarchical_local_sgd(), Scenario(6, StepTimes(0.1), links)).topology
        hierarchical(sizes=(3, 3))
    """
    groups = scenario.links.groups
    needed = any(
        rule.exchange.facts.topology == "groups" and rule.exchange.topology_override() is None
        for rule in algorithm.rules
    )
    if groups is None or not needed or scenario.topology != complete():
        return scenario
    return replace(scenario, topology=hierarchical(sizes=tuple(map(len, groups))))


def in_yaml(rules: Sequence[Rule]) -> str:
    """An algorithm of these rules, on a line of YAML."""
    return f"algorithm: {json.dumps({'rules': [_rule(rule) for rule in rules]})}"


def _rule(rule: Rule) -> dict[str, Any]:
    """A rule as YAML has it, without what is the default."""
    usual = Rule(payload=rule.payload, exchange=rule.exchange)
    names = [field.name for field in fields(rule)]
    required = ("payload", "exchange")
    given = [name for name in names if name in required or getattr(rule, name) != getattr(usual, name)]
    return {name: spell(getattr(rule, name)) for name in given}
