"""Rules that begin later in a run than others of the same parameters, and move them from a base."""

from __future__ import annotations

from collections.abc import Sequence

from relaxcomm.composition.rule_parts import RuleParts
from relaxcomm.errors import CompositionError


def gives_base(rules: Sequence[RuleParts], other: RuleParts, later: RuleParts) -> bool:
    """Whether one rule leaves replicas equal before another begins, which can move from there.

    Args:
        rules: of the same parameters.
        other: the first.
        later: the second, whose payload keeps a base.
    """
    begins = later.active[0]
    return other.active[0] < begins and (other.makes_replicas_equal or _has_kept_equal(rules, other, begins))


def check_bases(rules: Sequence[RuleParts], name: str) -> None:
    """Refuse rules that would move the parameter `name` from where it was when the run began.

    Raises: CompositionError, naming the rules.
    """
    for rule in rules:
        before = [one for one in rules if one.moves_parameters and one.active[0] < rule.active[0]]
        if not (before and rule.payload.facts.has_base):
            continue
        is_served = rule.exchange.facts.returns == "base"
        is_met = any(gives_base(rules, other, rule) for other in rules)
        if is_served or not (is_met or rule.outer.facts.averages):
            where = "is held by services from the beginning of the run on" if is_served else "differs by then"
            raise CompositionError(
                f"{rule!r} begins in step {rule.active[0]}, after {before[0]!r}, and moves {name} from a "
                f"base that {where}; let another algorithm begin there, by phases: or engine.switch(), which "
                "make replicas equal and bases anew"
            )


def _has_kept_equal(rules: Sequence[RuleParts], rule: RuleParts, begins: int) -> bool:
    """Whether replicas that were equal at first are so by a gradient rule until a step."""
    kept = rule.keeps_replicas_equal_while_active and rule.moves_parameters and not rule.delay
    before = [one for one in rules if one.active[0] < begins and one.moves_parameters]
    parts = any(not one.exchange.facts.same_result or one.payload.facts.keeps_local for one in before)
    return kept and not rule.active[0] and not parts
