"""Which rules can work beside each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, permutations, product

from relaxcomm.composition.legality.later_rules import check_bases
from relaxcomm.composition.rule_parts import RuleParts
from relaxcomm.errors import CompositionError, CompositionWarning
from relaxcomm.system.warn import warn


def check_rules(rules: Sequence[RuleParts]) -> None:
    """Refuse rules that cannot work beside each other.

    Raises: CompositionError, with what was got, what is allowed and what to do.
    """
    if not rules:
        raise CompositionError("an algorithm needs at least one rule; bsp is gradients over all_reduce")
    beside = [r for r in rules if r.payload.facts.site == "step" and not r.payload.facts.moves_model]
    if beside and not any(rule.moves_parameters for rule in rules):
        raise CompositionError(
            f"{beside[0]!r} leaves the parameters alone, whose replicas would drift apart; add a rule of "
            "parameters(), deltas() or gradients()"
        )
    alone = [rule for rule in rules if not rule.exchange.facts.collective]
    together = [rule for rule in rules if rule.exchange.facts.collective]
    for one, other in product(alone, together):
        if _meet(one, other):
            raise CompositionError(
                f"{one!r} lets every worker go on alone, but {other!r} has all wait for each other; give "
                "them disjoint active ranges, or use one kind of exchange"
            )
    _check_quorums(rules)
    _check_rounds(rules)
    check_together([rule for rule in rules if rule.select is None], "all parameters")
    if all(rule.select is None for rule in rules):
        check_bases(rules, "all parameters")
    _warn_of_drift(rules)
    _warn_of_repetition(rules)


def _check_quorums(rules: Sequence[RuleParts]) -> None:
    """Refuse to wait at several places for those that could wait at another."""
    several = [rule for rule in rules if rule.exchange.facts.applies_outer]
    for rule in several if len(several) > 1 else ():
        if rule.delay != "unbounded":
            raise CompositionError(
                f"{rule!r} waits for other workers, and they could wait for this one by another of "
                f"{len(several)} rules, each of which has a quorum of its own; use the delay 'unbounded', or "
                "one rule"
            )


def _check_rounds(rules: Sequence[RuleParts]) -> None:
    """Refuse beside rounds of clients what needs steps that all ranks do together, or other clients."""
    rounds = [rule for rule in rules if rule.trigger.round_plan() is not None]
    for rule in rules if rounds else ():
        if rule.trigger.round_plan() is None:
            raise CompositionError(
                f"{rule!r} exchanges in a step of all ranks, but the clients of {rounds[0]!r} give ranks "
                "different numbers of steps; use client_deltas() and every_round() in every rule, or in none"
            )
        if rule.trigger.round_plan() != rounds[0].trigger.round_plan():
            raise CompositionError(
                f"{rounds[0]!r} and {rule!r} play clients differently, but one loader plays them for all "
                "rules; give every_round() the same epochs, fraction and clients in each"
            )
        if rule.active != (0, None):
            raise CompositionError(
                f"active={rule.active} with {rule.trigger!r}: clients give ranks different numbers of steps, "
                "so some would exchange at a round's end and others not; leave active out"
            )


def check_together(rules: Sequence[RuleParts], name: str) -> None:
    """Refuse rules that cannot both apply to the parameter `name`.

    Raises: CompositionError, naming the two rules.
    """
    at_backward = [rule for rule in rules if rule.payload.facts.site == "backward"]
    for one, other in permutations(at_backward, 2):
        if one.delay and _meet(one, other):
            raise CompositionError(
                f"{one!r} replaces gradients of {name} by late ones that {other!r} also exchanges; give "
                "them disjoint active ranges or selects, or delay 0"
            )
    for one, other in combinations(filter(_corrects_late, rules), 2):
        if _meet(one, other) and _fly_together(one, other):
            raise CompositionError(
                f"{one!r} and {other!r} are on their way at the same time, and each corrects all that lies "
                f"between the replicas of {name}, so that both overshoot; give them disjoint active ranges "
                "or selects, steps that are further apart, or delay 0"
            )


def _corrects_late(rule: RuleParts) -> bool:
    """Whether a late result moves parameters by how far they were from it when they were sent."""
    payload = rule.payload.facts
    return bool(rule.delay) and payload.moves_model and not payload.keeps_local


def _fly_together(one: RuleParts, other: RuleParts) -> bool:
    """Whether one may be sent while the result of the other is yet to come."""
    if one.delay == "unbounded" or other.delay == "unbounded":
        return True
    later = other.active[0] - one.active[0]
    every = math.gcd(one.trigger.facts.period_steps, other.trigger.facts.period_steps)
    return later % every < one.delay or -later % every < other.delay


def _warn_of_drift(rules: Sequence[RuleParts]) -> None:
    """Of workers that train alone, or in groups, and that no other rule brings together again."""
    if reason := _why_apart([rule for rule in rules if rule.moves_parameters]):
        warn(
            f"{reason}, so replicas part for good; use the payload parameters(), or add a rule that averages "
            "them now and then",
            CompositionWarning,
        )


def _warn_of_repetition(rules: Sequence[RuleParts]) -> None:
    """Of a rule that exchanges again what one like it has just made equal."""
    for one, other in combinations(rules, 2):
        equal = one == other and one.exchange.facts.same_result and not one.payload.facts.keeps_local
        if equal and not one.delay:
            warn(
                f"{one!r} stands twice, and sends twice what is equal on all workers after the first time; "
                "leave one out, or give them disjoint active ranges or selects",
                CompositionWarning,
            )


def _why_apart(moving: Sequence[RuleParts]) -> str | None:
    """Why replicas that rules move part for good, or None if that is not known."""
    at_step = [rule for rule in moving if rule.payload.facts.site == "step"]
    apart = [rule for rule in moving if not rule.exchange.facts.same_result]
    if apart and not at_step:
        return f"{apart[0]!r} gives every rank another gradient and no rule exchanges parameters"
    if at_step and apart == list(moving) and all(r.exchange.facts.topology == "groups" for r in apart):
        return f"{apart[0]!r} averages inside groups and no rule between them"
    # Those that vote on gradients are to find the steps that matter, so nobody knows how far they part.
    meeting = [rule for rule in moving if rule in at_step or rule.trigger.facts.known == "backward"]
    alone = max((_stop(rule) for rule in meeting), default=0.0)
    for rule in sorted(moving, key=lambda rule: rule.active[0]):
        if rule.keeps_replicas_equal_while_active and rule.active[0] <= alone:
            alone = max(alone, _stop(rule))
    if not moving or math.isinf(alone):
        return None
    return f"in step {alone:.0f} workers train alone and no later rule exchanges parameters"


def _meet(one: RuleParts, other: RuleParts) -> bool:
    """Whether there is a step in which both are active."""
    return max(one.active[0], other.active[0]) < min(_stop(one), _stop(other))


def _stop(rule: RuleParts) -> float:
    """The first step in which a rule is no longer active."""
    return math.inf if rule.active[1] is None else rule.active[1]
