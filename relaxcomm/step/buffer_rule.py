"""How a model's buffers are averaged beside a rule that moves its parameters."""

from __future__ import annotations

from relaxcomm.composition.rule import Rule
from relaxcomm.errors import PluginError
from relaxcomm.primitives.payloads.parameters import parameters
from relaxcomm.primitives.triggers.every import every
from relaxcomm.primitives.triggers.every_step import every_step


def buffer_rule(rule: Rule) -> Rule:
    """How the buffers that go with a rule are averaged: in full precision, over the same exchange.

    Raises: PluginError for a payload of buffers that keeps something of its own.
    """
    # When it runs is decided by the rule that it goes with.
    trigger = every(steps=max(1, rule.delay)) if isinstance(rule.delay, int) else every_step()
    payload = rule.payload.for_buffers() or parameters()
    if own := sorted(set(payload.facts.slots) - set(rule.payload.facts.slots)):
        raise PluginError(
            f"{payload!r} averages the buffers beside {rule.payload!r} and keeps {own}, but nothing of "
            f"buffers is kept between exchanges; use slots that {rule.payload!r} has, such as a weight"
        )
    return Rule(payload=payload, exchange=rule.exchange.without_memory, trigger=trigger, delay=rule.delay)
