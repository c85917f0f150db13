"""Which topologies rules can use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relaxcomm.composition.legality.alternatives import listed
from relaxcomm.errors import CompositionError
from relaxcomm.primitives.exchanges.hierarchical_all_reduce import hierarchical_all_reduce

if TYPE_CHECKING:
    from relaxcomm.composition.algorithm import Rule
    from relaxcomm.topology import Topology


def check_topology(rules: Sequence[Rule], topology: Topology) -> None:
    """Refuse a configured topology that the rules cannot use, or that none of them would use.

    Raises: CompositionError, saying which topologies can be used.
    """
    asking = [rule for rule in rules if rule.exchange.own_topology() is None]
    for rule in asking:
        if rule.exchange.uses_topology == "groups" and not topology.has_groups:
            raise CompositionError(
                f"{rule!r} exchanges inside and between groups of ranks, which {topology!r} does not have; "
                "use topology: {hierarchical: {sizes: 8}}, with the number of ranks on each machine, or "
                "{hierarchical: {sizes: [4, 2]}} where it differs"
            )
    for rule in asking:
        check_graph(rule, topology)
    if topology.all_pairs or any(rule.exchange.uses_topology != "complete" for rule in asking):
        return
    if asking:
        raise CompositionError(
            f"{asking[0]!r} exchanges with all ranks, so it cannot use topology {topology!r}; it can use "
            f"complete, which is the default; {_instead(asking[0], topology)}"
        )
    raise CompositionError(
        f"topology {topology!r} would not be used: every rule has one of its own; leave topology out"
    )


def _instead(rule: Rule, topology: Topology) -> str:
    """What to do for a graph that a rule which exchanges with all ranks cannot use."""
    if not topology.has_groups:
        return "for other graphs choose an algorithm with the exchange gossip"
    if not rule.exchange.collective:
        return f"{rule.exchange!r} answers each worker alone, so that groups have nothing to do together"
    refused = rule.compressor.kinds - hierarchical_all_reduce.accepts
    if refused:
        return (
            f"groups add up dense messages, but those of {rule.compressor!r} are {listed(refused)}, and a "
            "sum of them would have to be coded anew"
        )
    return "for groups write its rules out, with the exchange hierarchical_all_reduce"


def check_graph(rule: Rule, topology: Topology) -> None:
    """Refuse graphs that the rule's exchange cannot have, at any number of workers."""
    if rule.exchange.needs_fixed_graph and topology.changes:
        raise CompositionError(
            f"{rule.exchange!r} keeps what its neighbours have sent, so they must stay the same, but "
            f"{topology!r} changes from step to step; use one that stays, such as ring or exponential, or "
            "the exchange gossip"
        )
