"""Which topologies rules can use."""

from __future__ import annotations

from collections.abc import Sequence

from relaxcomm.composition.legality.alternatives import exchanges_that
from relaxcomm.composition.rule_parts import RuleParts
from relaxcomm.errors import CompositionError
from relaxcomm.fields.allowed import one_of
from relaxcomm.topology import Topology


def check_topology(rules: Sequence[RuleParts], topology: Topology) -> None:
    """Refuse a configured topology that the rules cannot use, or that none of them would use.

    Raises: CompositionError, saying which topologies can be used.
    """
    asking = [rule for rule in rules if rule.exchange.topology_override() is None]
    for rule in asking:
        if rule.exchange.facts.topology == "groups" and not topology.has_groups:
            raise CompositionError(
                f"{rule!r} exchanges inside and between groups of ranks, which {topology!r} does not have; "
                "use topology: {hierarchical: {sizes: 8}}, with the number of ranks on each machine, or "
                "{hierarchical: {sizes: [4, 2]}} where it differs"
            )
    for rule in asking:
        check_graph(rule, topology)
    if topology.all_pairs or any(rule.exchange.facts.topology != "complete" for rule in asking):
        return
    if asking:
        raise CompositionError(
            f"{asking[0]!r} exchanges with all ranks, so it cannot use topology {topology!r}; it can use "
            f"complete, which is the default; {_instead(asking[0], topology)}"
        )
    raise CompositionError(
        f"topology {topology!r} would not be used: every rule has one of its own; leave topology out"
    )


def _instead(rule: RuleParts, topology: Topology) -> str:
    """What to do for a graph that a rule which exchanges with all ranks cannot use."""
    if not topology.has_groups:
        return "for other graphs choose an algorithm with the exchange gossip"
    if not rule.exchange.facts.collective:
        return f"{rule.exchange!r} answers each worker alone, so that groups have nothing to do together"
    exchanges = exchanges_that(
        lambda one: (
            one.topology == "groups" and one.same_result and rule.compressor.facts.kinds <= one.accepts
        )
    )
    if not exchanges:
        kinds = one_of(sorted(rule.compressor.facts.kinds))
        return (
            f"groups add up messages, but those of {rule.compressor!r} are {kinds}, and a sum of them would "
            "have to be coded anew"
        )
    return f"for groups write its rules out, with the exchange {one_of(exchanges)}"


def check_graph(rule: RuleParts, topology: Topology) -> None:
    """Refuse graphs that the rule's exchange cannot have, at any number of workers."""
    if rule.exchange.facts.needs_fixed_graph and topology.changes:
        raise CompositionError(
            f"{rule.exchange!r} keeps what its neighbours have sent, so they must stay the same, but "
            f"{topology!r} changes from step to step; use one that stays, such as ring or exponential, or "
            "the exchange gossip"
        )
