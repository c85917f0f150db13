"""Which primitives can work together in a rule."""

from __future__ import annotations

import math

from relaxcomm.composition import fragments
from relaxcomm.composition.legality.alternatives import exchanges_that, neighbours
from relaxcomm.composition.legality.losses import warn_of_losses
from relaxcomm.composition.legality.outer_rules import check_outer, check_served_outer
from relaxcomm.composition.legality.topologies import check_graph
from relaxcomm.composition.rule_parts import RuleParts
from relaxcomm.data.clients import ROUND
from relaxcomm.errors import CompositionError
from relaxcomm.fields.allowed import one_of
from relaxcomm.roles import ExchangeFacts, Payload, PayloadFacts


def check_rule(rule: RuleParts) -> None:
    """Refuse a rule whose primitives cannot work together.

    Raises: CompositionError, with what was got, what is allowed and what to do.
    """
    _check_kinds(rule)
    _check_exchange(rule)
    _check_replicas(rule)
    _check_clock(rule)
    _check_events(rule)
    _check_measures(rule)
    _check_weights(rule)
    check_outer(rule)
    _check_delay(rule)
    _check_range(rule)
    warn_of_losses(rule)


def _check_kinds(rule: RuleParts) -> None:
    """Refuse messages that the exchange cannot combine."""
    exchange, compressor = rule.exchange, rule.compressor
    refused = compressor.facts.kinds - exchange.facts.accepts
    if refused:
        raise CompositionError(
            f"{compressor!r} makes {one_of(sorted(refused))} messages, which {exchange!r} cannot combine: it "
            f"takes {one_of(sorted(exchange.facts.accepts))}; {neighbours(exchange, compressor)}"
        )


def _check_exchange(rule: RuleParts) -> None:
    """Refuse what the exchange does not bring back as payload, compressor or trigger need it."""
    exchange = rule.exchange
    moves_base = rule.payload.facts.has_base and rule.payload.facts.is_move
    if moves_base and not (exchange.facts.same_result or exchange.facts.returns == "base"):
        raise CompositionError(
            f"{rule.payload!r} keeps an anchor that must stay the same on all ranks, but {exchange!r} gives "
            "each its own result; use the payload parameters(), or the exchange all_reduce()"
        )
    if exchange.facts.applies_outer:
        check_served_outer(rule, moves_base=moves_base)
    elif exchange.facts.returns == "base" and not (moves_base and rule.outer.facts.averages):
        raise CompositionError(
            f"{exchange!r} adds up what workers have moved and returns parameters, so it needs the payload "
            f"deltas() and the outer average(); got {rule.payload!r} and {rule.outer!r}"
        )
    if exchange.facts.returns == "votes" and rule.compressor.facts.memory != "none":
        raise CompositionError(
            f"{exchange!r} returns votes, which are no part of what {rule.compressor!r} would keep the rest "
            "of; use its inner compressor alone, or the exchange all_gather()"
        )
    shared = rule.compressor.facts.rounds > 1 or rule.compressor.facts.follows_results
    if shared and not (exchange.facts.several_rounds and exchange.facts.same_result):
        raise CompositionError(
            f"{exchange!r} cannot show each rank the results of all messages, on which {rule.compressor!r} "
            f"builds; use the exchange {one_of(exchanges_that(lambda one: _shows_results(one, rule)))}"
        )
    if exchange.facts.collective:
        return
    if rule.trigger.facts.known != "start":
        raise CompositionError(
            f"{exchange!r} lets every worker go on alone, but {rule.trigger!r} makes all agree in each step; "
            "use every_step() or every(steps=…)"
        )
    if rule.delay and exchange.facts.returns == "base" and not exchange.facts.applies_outer:
        raise CompositionError(
            f"{exchange!r} bounds the staleness itself, so it takes no delay; got delay {rule.delay}"
        )


def _shows_results(exchange: ExchangeFacts, rule: RuleParts) -> bool:
    """Whether all ranks would see the results of all of a rule's messages."""
    shown = exchange.several_rounds and exchange.same_result and exchange.topology == "complete"
    return shown and rule.compressor.facts.kinds <= exchange.accepts


def _check_replicas(rule: RuleParts) -> None:
    """Refuse what would send something twice, or draw points to zero."""
    exchange = rule.exchange
    if exchange.facts.follows_parameters and not rule.payload.facts.is_model:
        raise CompositionError(
            f"{exchange!r} keeps public copies of the parameters, so it cannot exchange {rule.payload!r}; "
            "use the payload parameters()"
        )
    if exchange.facts.memory != "none" and rule.compressor.facts.memory != "none":
        raise CompositionError(
            f"{exchange!r} sends what a message leaves out in a later one, and so does {rule.compressor!r}, "
            f"which would send it twice; use {rule.compressor.without_memory!r}"
        )
    if not (rule.payload.facts.is_move or math.isinf(rule.compressor.facts.max_norm)):
        raise CompositionError(
            f"{rule.compressor!r} bounds how long what is sent may be, and {rule.payload!r} are points, "
            "which would be drawn to zero; use the payload deltas()"
        )
    override = exchange.topology_override()
    if override is not None:
        check_graph(rule, override)


def _check_clock(rule: RuleParts) -> None:
    if rule.compressor.facts.follows_clock and not rule.exchange.facts.collective:
        raise CompositionError(
            f"{rule.exchange!r} reads messages that workers made at different clocks, but how those of "
            f"{rule.compressor!r} are to be read depends on the clock; give it a density or bits that stay"
        )


def _check_events(rule: RuleParts) -> None:
    """Refuse a payload and a trigger that wait for different events, and one that is told of none."""
    event = rule.trigger.facts.event
    waits = rule.payload.facts.event
    if ROUND in {waits, event} and waits != event:
        raise CompositionError(
            f"{rule.payload!r} with {rule.trigger!r}: the moves of clients are exchanged at a round's end, "
            "and nothing else is; use client_deltas() and every_round() together"
        )
    if waits != event:
        of_payload, of_trigger = (f"event {one!r}" if one else "no event" for one in (waits, event))
        raise CompositionError(
            f"{rule.payload!r} waits for {of_payload}, and {rule.trigger!r} for {of_trigger}; take two whose "
            "facts declare the same event"
        )
    kind = type(rule.payload)
    states = isinstance(kind.facts, PayloadFacts)  # else they are of what it wraps and passes events on to
    if states and kind.event is not Payload.event and not rule.payload.facts.hears:
        raise CompositionError(
            f"{rule.payload!r} has an event(), which nobody calls: its facts declare to hear no events; name "
            'those of which it takes note, such as hears=frozenset({"round"})'
        )
    if event is not None and rule.delay:
        raise CompositionError(f"delay {rule.delay} with {rule.trigger!r}: a round has no steps; use delay 0")


def _check_measures(rule: RuleParts) -> None:
    """Refuse a payload that would measure what is not there: all gradients, or what no server has yet."""
    if rule.payload.measures and rule.exchange.facts.returns == "base":
        raise CompositionError(
            f"{rule.payload!r} has a measure(), and what ranks have not pushed to {rule.exchange!r} yet is "
            "read bucket by bucket; use the exchange all_reduce()"
        )
    if rule.payload.measures and rule.payload.facts.site == "backward":
        raise CompositionError(
            f"{rule.payload!r} has a measure(), which nobody calls: it is read at backward, where the first "
            'gradients leave before the last are there; measure in a payload of site="step", or in an outer'
        )


def _check_weights(rule: RuleParts) -> None:
    """Refuse what loses a weight that is sent behind the entries, or takes these without it."""
    if not rule.payload.facts.extra_entries:
        return
    if not rule.exchange.facts.collective:
        raise CompositionError(
            f"{rule.payload!r} sends a weight behind its entries, which the services of {rule.exchange!r} "
            "would lose: they hold the entries of a bucket alone; use the exchange all_reduce()"
        )
    coded = rule.compressor.facts
    if not (coded.scope == "entry" and coded.unbiased and math.isinf(coded.clip)):
        raise CompositionError(
            f"{rule.payload!r} sends a weight behind its entries, which {rule.compressor!r} might not keep; "
            "use identity() or cast(dtype=…)"
        )
    if rule.exchange.facts.returns == "robust mean":
        raise CompositionError(
            f"{rule.payload!r} sends entries that are multiplied by a weight, of which {rule.exchange!r} "
            "would take the middle ones without their weights; use the exchange all_reduce(), or the payload "
            "deltas()"
        )


def _check_delay(rule: RuleParts) -> None:
    """Refuse results that come too late to be applied."""
    facts = rule.payload.facts
    if rule.delay and facts.site == "step" and not facts.moves_model:
        raise CompositionError(
            f"delay {rule.delay} with {rule.payload!r}: a late result keeps what the parameters have moved "
            "meanwhile, and this is no part of them; use delay 0"
        )
    if rule.delay == "unbounded":
        _check_unbounded(rule)
        return
    period = rule.trigger.facts.period_steps
    if rule.payload.facts.site == "backward":
        if rule.delay and rule.compressor.facts.memory != "none":
            raise CompositionError(
                f"delay {rule.delay} with {rule.compressor!r}: a gradient leaves before the one ahead is "
                "back, so both would carry the same rest; use delay 0, or deltas() or parameters()"
            )
        if rule.delay and rule.trigger.facts.known != "start":
            raise CompositionError(
                f"delay {rule.delay} with {rule.trigger!r}: late gradients take the place of the step's own "
                "in every step, so they cannot wait for a vote; use delay 0, or deltas() or parameters()"
            )
        if rule.delay and period != 1:
            raise CompositionError(
                f"delay {rule.delay} with {rule.trigger!r}: late gradients take the place of the step's own, "
                "so they need the trigger every_step(); or use deltas() instead of gradients()"
            )
    elif rule.delay > period:
        raise CompositionError(
            f"delay {rule.delay} is longer than the {period} step(s) between two exchanges of "
            f"{rule.trigger!r}, and then replicas part for good; use a delay of at most {period}, or every("
            f"steps={rule.delay}) or more"
        )


def _check_unbounded(rule: RuleParts) -> None:
    if rule.exchange.facts.collective:
        raise CompositionError(
            f"delay unbounded with {rule.exchange!r}: its result arrives on each rank in another step, and "
            "then ranks would not take part in the next exchange together; use averaging_server(), or a "
            "delay in steps"
        )
    if rule.payload.facts.site == "backward":
        raise CompositionError(
            f"delay unbounded with {rule.payload!r}: the optimizer needs a gradient in every step; use "
            "parameters() or deltas()"
        )


def _check_range(rule: RuleParts) -> None:
    """Refuse a rule that is never active, or covers nothing."""
    start, stop = rule.active
    if stop is not None and stop <= start:
        raise CompositionError(
            f"active={rule.active} is empty: the second number is the first step in which the rule is no "
            f"longer active, so it must be above {start}, or None"
        )
    if rule.select == ():
        raise CompositionError("select=() selects nothing; name parameters or patterns, or leave it out")
    for one in rule.select or ():
        fragments.check(one)
