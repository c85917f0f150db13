"""Which rules, controllers and topologies can work beside each other."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from relaxcomm.errors import CompositionError, CompositionWarning

if TYPE_CHECKING:
    from relaxcomm.composition.algorithm import Rule
    from relaxcomm.composition.planner import Chooser
    from relaxcomm.roles import Controller


def check_rules(rules: Sequence[Rule]) -> None:
    """Refuse rules that cannot work beside each other.

    Raises: CompositionError, with what was got, what is allowed and what to do.
    """
    if not rules:
        raise CompositionError("an algorithm needs at least one rule; bsp is gradients over all_reduce")
    alone = [rule for rule in rules if not rule.exchange.collective]
    together = [rule for rule in rules if rule.exchange.collective]
    for one in alone:
        for other in together:
            if _meet(one, other):
                raise CompositionError(
                    f"{one!r} lets every worker go on alone, but {other!r} has all wait for each other; give "
                    "them disjoint active ranges, or use one kind of exchange"
                )
    check_together([rule for rule in rules if rule.select is None], "all parameters")
    _warn_of_drift(rules)


def check_controllers(controllers: Sequence[Controller], rules: Sequence[Rule]) -> None:
    """Refuse controllers that cannot see what they need, and rules whose result nobody uses.

    Raises: CompositionError, with what was got, what is allowed and what to do.
    """
    for controller in controllers:
        if controller.rule >= len(rules):
            raise CompositionError(
                f"{controller!r} watches rule {controller.rule}, but there are {len(rules)}, counted from 0"
            )
        if controller.needs_local and rules[controller.rule].payload.site != "backward":
            raise CompositionError(
                f"{controller!r} compares each worker's own gradient with the mean, so it cannot watch "
                f"{rules[controller.rule]!r}; let it watch a rule of gradients(), with the outer observe() "
                "if they are not to be applied"
            )
        compressor = rules[controller.rule].compressor
        if controller.needs_local and not compressor.unbiased:
            raise CompositionError(
                f"{controller!r} reads the mean gradient's size from what is exchanged, which {compressor!r} "
                "shortens; take one that is unbiased, such as identity() or count_sketch(size=1024)"
            )
    for index, rule in enumerate(rules):
        if rule.outer.target is None and all(controller.rule != index for controller in controllers):
            raise CompositionError(
                f"{rule!r} moves nothing and no controller watches it; give a controller rule={index}, or "
                "choose another outer"
            )


def check_chooser(chooser: Chooser, rules: Sequence[Rule]) -> None:
    """Refuse rules that exchange something in the steps that a chooser measures, before the last of them.

    Raises: CompositionError, with what was got, what is allowed and what to do.
    """
    steps = chooser.after_steps
    if steps < 3:
        raise CompositionError(f"{chooser!r} measures {steps} step(s); it takes at least 3")
    for rule in rules:
        if rule.delay or rule.payload.site != "step" or rule.trigger.period_steps < steps:
            raise CompositionError(
                f"{chooser!r} measures {steps} steps without communication, which {rule!r} disturbs; use a "
                f"trigger of {steps} steps or more, such as every(steps={steps}), parameters() or deltas(), "
                "and delay 0"
            )


def check_together(rules: Sequence[Rule], name: str) -> None:
    """Refuse rules that cannot both apply to the parameter `name`.

    Raises: CompositionError, naming the two rules.
    """
    at_backward = [rule for rule in rules if rule.payload.site == "backward"]
    for one in at_backward:
        for other in at_backward:
            if one is not other and one.delay and _meet(one, other):
                raise CompositionError(
                    f"{one!r} replaces gradients of {name} by late ones that {other!r} also exchanges; give "
                    "them disjoint active ranges or selects, or delay 0"
                )


def _warn_of_drift(rules: Sequence[Rule]) -> None:
    """Gradients that differ between ranks move the parameters apart, unless a rule exchanges those, too."""
    moving = [rule for rule in rules if rule.outer.target]
    apart = [rule for rule in moving if rule.payload.site == "backward" and not rule.exchange.same_result]
    if apart and not any(rule.payload.site == "step" for rule in moving):
        warnings.warn(
            f"{apart[0]!r} gives every rank another gradient and no rule exchanges parameters, so replicas "
            "part for good; use the payload parameters(), or add a rule that averages them now and then",
            CompositionWarning,
            stacklevel=4,
        )


def _meet(one: Rule, other: Rule) -> bool:
    """Whether there is a step in which both are active."""
    stops = [stop for stop in (one.active[1], other.active[1]) if stop is not None]
    return not stops or max(one.active[0], other.active[0]) < min(stops)
