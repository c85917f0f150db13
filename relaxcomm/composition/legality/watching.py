"""Which controllers and planners can watch an algorithm's rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

from relaxcomm.composition.rule_parts import RuleParts
from relaxcomm.errors import CompositionError
from relaxcomm.roles import Controller, Trigger
from relaxcomm.roles.controller import BATCH_SIZE
from relaxcomm.roles.planner import Planner


def check_controllers(controllers: Sequence[Controller], rules: Sequence[RuleParts]) -> None:
    """Refuse controllers that cannot see what they need, and rules whose result nobody uses.

    Raises: CompositionError, with what was got, what is allowed and what to do.
    """
    for controller in controllers:
        if controller.rule >= len(rules):
            raise CompositionError(
                f"{controller!r} watches rule {controller.rule}, but there are {len(rules)}, counted from 0"
            )
        if controller.facts.needs_local:
            _check_comparing(controller, rules[controller.rule])
    _check_values(controllers, rules)
    for index, rule in enumerate(rules):
        if not rule.outer.facts.moves_model and all(controller.rule != index for controller in controllers):
            raise CompositionError(
                f"{rule!r} moves nothing and no controller watches it; give a controller rule={index}, or "
                "choose another outer"
            )


def _check_comparing(controller: Controller, rule: RuleParts) -> None:
    """Refuse a rule in which a worker's own gradient cannot be compared with the mean."""
    looks = f"{controller!r} looks at each worker's own gradient (needs_local)"
    if rule.payload.facts.site != "backward":
        raise CompositionError(
            f"{looks}, so it cannot watch {rule!r}; let it watch a rule of gradients(), with the outer "
            "observe() if they are not to be applied"
        )
    if rule.exchange.facts.returns == "robust mean":
        raise CompositionError(
            f"{looks}, to compare it with the mean, which {rule.exchange!r} does not return; use the "
            "exchange all_reduce() or all_gather()"
        )
    coded = rule.compressor.facts
    if not (coded.unbiased and math.isinf(min(coded.clip, coded.max_norm))):
        raise CompositionError(
            f"{looks}, to compare it with the mean, of which {rule.compressor!r} shortens or leaves out a "
            "part; take one that is unbiased, such as identity() or count_sketch(size=1024)"
        )


def _check_values(controllers: Sequence[Controller], rules: Sequence[RuleParts]) -> None:
    """Refuse what looks at a value that nobody gives before the first step, or that two give differently."""
    given, giver = {BATCH_SIZE: 0.0}, dict[str, Controller]()
    for controller in controllers:
        first = controller.init_values()
        if BATCH_SIZE in first:
            raise CompositionError(
                f"{controller!r} gives batch_size a first value, which is that of engine.loader; leave it "
                "out of init_values, and name it in the facts' needs"
            )
        for name, value in first.items():
            if given.setdefault(name, value) != value:
                raise CompositionError(
                    f"{giver[name]!r} gives {name!r} the first value {given[name]:g}, and {controller!r} "
                    f"gives it {value:g}; let both give the same, or name their values differently"
                )
            giver.setdefault(name, controller)
    parts: tuple[Trigger | Controller, ...] = (*(rule.trigger for rule in rules), *controllers)
    for part in parts:
        missing = sorted(part.facts.needs - set(given))
        if missing:
            raise CompositionError(
                f"{part!r} looks at {', '.join(map(repr, missing))}, which no controller of the algorithm "
                f"gives; allowed: {', '.join(sorted(given))}; let a controller's init_values give it"
            )


def check_planner(planner: Planner, rules: Sequence[RuleParts]) -> None:
    """Refuse rules that exchange something in the steps that a planner measures, before the last of them.

    Raises: CompositionError, with what was got, what is allowed and what to do.
    """
    steps = planner.facts.after_steps
    if steps < 3:
        raise CompositionError(f"{planner!r} measures {steps} step(s); it takes at least 3")
    for rule in rules:
        if rule.delay or rule.payload.facts.site != "step" or rule.trigger.facts.period_steps < steps:
            raise CompositionError(
                f"{planner!r} measures {steps} steps without communication, which {rule!r} disturbs; use a "
                f"trigger of {steps} steps or more, such as every(steps={steps}), parameters() or deltas(), "
                "and delay 0"
            )
