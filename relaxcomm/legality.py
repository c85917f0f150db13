"""Which compositions can work, decided from declared facts and never from a list of names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from relaxcomm import fragments
from relaxcomm.errors import CompositionError, CompositionWarning
from relaxcomm.messages import SUMMABLE
from relaxcomm.primitives.hierarchy import hierarchical_all_reduce
from relaxcomm.primitives.outers import average
from relaxcomm.protocol import Compressor, Exchange

if TYPE_CHECKING:
    from relaxcomm.algorithm import Rule
    from relaxcomm.protocol import Controller
    from relaxcomm.topology import Topology


_LARGE = 1 << 20  # entries for which a compressor's loss is asked
_ROUNDING = 0.01  # the most of ||x||^2 that counts as rounding, which needs no error feedback


def check_rule(rule: Rule) -> None:
    """Refuse a rule whose primitives cannot work together.

    Raises: CompositionError, with what was got, what is allowed and what to do.
    """
    _check_kinds(rule)
    _check_exchange(rule)
    _check_replicas(rule)
    _check_clock(rule)
    _check_events(rule)
    _check_outer(rule)
    _check_delay(rule)
    _check_range(rule)
    _warn_of_bias(rule)


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
    for index, rule in enumerate(rules):
        if rule.outer.target is None and all(controller.rule != index for controller in controllers):
            raise CompositionError(
                f"{rule!r} moves nothing and no controller watches it; give a controller rule={index}, or "
                "choose another outer"
            )


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
        _check_graph(rule, topology)
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
            f"groups add up dense messages, but those of {rule.compressor!r} are {_listed(refused)}, and a "
            "sum of them would have to be coded anew"
        )
    return "for groups write its rules out, with the exchange hierarchical_all_reduce"


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


def _check_kinds(rule: Rule) -> None:
    exchange, compressor = rule.exchange, rule.compressor
    refused = compressor.kinds - exchange.accepts
    if refused:
        raise CompositionError(
            f"{compressor!r} makes {_listed(refused)} messages, which {exchange!r} cannot combine: it takes "
            f"{_listed(exchange.accepts)}; {_neighbours(exchange, compressor)}"
        )


def _neighbours(exchange: Exchange, compressor: Compressor) -> str:
    """What could stand in the place of one of two that do not fit, by what all that is known declares."""
    alike = ("collective", "same_result", "counts_votes", "uses_topology")
    exchanges = [
        one.__name__
        for one in _kinds_of(Exchange)
        if compressor.kinds <= one.accepts
        and all(getattr(one, fact) == getattr(exchange, fact) for fact in alike)
    ]
    compressors = [
        one.__name__
        for one in _kinds_of(Compressor)
        if isinstance(one.kinds, frozenset) and one.kinds <= exchange.accepts
    ]
    choices = [f"the exchange {_listed(exchanges)}"] if exchanges else []
    choices += [f"a compressor such as {_listed(compressors)}"] if compressors else []
    return f"use {', or '.join(choices)}" if choices else "nothing that is known fits either"


def _kinds_of(role: Any) -> list[Any]:
    """All complete classes of a role, plug-ins that were imported among them."""
    found = []
    for cls in role.__subclasses__():
        found += _kinds_of(cls)
        if not inspect.isabstract(cls) and cls.__name__.islower() and not cls.__name__.startswith("_"):
            found.append(cls)
    return found


def _warn_of_bias(rule: Rule) -> None:
    lost = rule.compressor.contraction(_LARGE)
    if (lost is not None and lost <= _ROUNDING) or rule.compressor.meant_bias:
        return
    if rule.exchange.counts_votes or rule.exchange.sends_rest:
        return
    if not rule.compressor.unbiased and not rule.compressor.keeps_rest:
        warnings.warn(
            f"{rule.compressor!r} loses a part of what it codes for good, so training may stall; "
            "put it inside error_feedback",
            CompositionWarning,
            stacklevel=5,
        )


def _check_exchange(rule: Rule) -> None:
    exchange = rule.exchange
    if rule.payload.has_base and not (exchange.same_result or exchange.returns_base):
        raise CompositionError(
            f"{rule.payload!r} keeps an anchor that must stay the same on all ranks, but {exchange!r} gives "
            "each its own result; use the payload parameters(), or the exchange all_reduce()"
        )
    if exchange.returns_base and not (rule.payload.has_base and rule.outer == average()):
        raise CompositionError(
            f"{exchange!r} adds up what workers have moved and returns parameters, so it needs the payload "
            f"deltas() and the outer average(); got {rule.payload!r} and {rule.outer!r}"
        )
    if exchange.counts_votes and rule.compressor.keeps_rest:
        raise CompositionError(
            f"{exchange!r} returns votes, which are no part of what {rule.compressor!r} would keep the rest "
            "of; use its inner compressor alone, or the exchange all_gather()"
        )
    shared = rule.compressor.rounds > 1 or rule.compressor.builds_on_results
    if shared and not (exchange.several_rounds and exchange.same_result):
        raise CompositionError(
            f"{exchange!r} cannot show each rank the results of all messages, on which {rule.compressor!r} "
            f"builds; use {'all_reduce' if rule.compressor.kinds <= SUMMABLE else 'all_gather'}()"
        )
    if exchange.collective:
        return
    if rule.trigger.known != "start":
        raise CompositionError(
            f"{exchange!r} lets every worker go on alone, but {rule.trigger!r} makes all agree in each step; "
            "use every_step() or every(steps=…)"
        )
    if rule.delay and exchange.returns_base:
        raise CompositionError(
            f"{exchange!r} bounds the staleness itself, so it takes no delay; got delay {rule.delay}"
        )


def _check_replicas(rule: Rule) -> None:
    exchange = rule.exchange
    if exchange.follows_parameters and not rule.payload.is_model:
        raise CompositionError(
            f"{exchange!r} keeps replicas of the parameters, so it cannot exchange {rule.payload!r}; use the "
            "payload parameters()"
        )
    if exchange.sends_rest and rule.compressor.keeps_rest:
        raise CompositionError(
            f"{exchange!r} sends what a message leaves out in a later one, and so does {rule.compressor!r}, "
            f"which would send it twice; use {rule.compressor.plain!r}"
        )
    own = exchange.own_topology()
    if own is not None:
        _check_graph(rule, own)


def _check_graph(rule: Rule, topology: Topology) -> None:
    """Refuse graphs that the rule's exchange cannot have, at any number of workers."""
    if rule.exchange.needs_fixed_graph and topology.changes:
        raise CompositionError(
            f"{rule.exchange!r} keeps what its neighbours have sent, so they must stay the same, but "
            f"{topology!r} changes from step to step; use one that stays, such as ring or exponential, or "
            "the exchange gossip"
        )


def _check_clock(rule: Rule) -> None:
    if rule.compressor.follows_clock and not rule.exchange.collective:
        raise CompositionError(
            f"{rule.exchange!r} reads messages that workers made at different clocks, but how those of "
            f"{rule.compressor!r} are to be read depends on the clock; use a sparsifier with a density that "
            "does not change"
        )


def _check_events(rule: Rule) -> None:
    waits = rule.trigger.plan() is not None
    if (rule.payload.needs_event is not None) != waits:
        raise CompositionError(
            f"{rule.payload!r} with {rule.trigger!r}: the moves of clients are exchanged at a round's end, "
            "and nothing else is; use client_deltas() and every_round() together"
        )
    if waits and rule.delay:
        raise CompositionError(f"delay {rule.delay} with {rule.trigger!r}: a round has no steps; use delay 0")
    if rule.payload.has_weight and not rule.compressor.elementwise:
        raise CompositionError(
            f"{rule.payload!r} sends a weight behind its entries, which {rule.compressor!r} might not keep; "
            "use identity() or cast(dtype=…)"
        )


def _check_outer(rule: Rule) -> None:
    if rule.outer.target is None and (rule.payload.site != "backward" or rule.delay):
        raise CompositionError(
            f"{rule.outer!r} leaves the payload alone, which is for gradients() without delay; got "
            f"{rule.payload!r} with delay {rule.delay}; choose another outer, such as average()"
        )
    if rule.outer.for_gradients and rule.payload.site != "backward":
        raise CompositionError(
            f"{rule.outer!r} makes a direction for the optimizer, but {rule.payload!r} does not reach it; "
            "use the payload gradients()"
        )
    if rule.outer.needs_momentum and not rule.payload.is_momentum:
        raise CompositionError(
            f"{rule.outer!r} takes momentum for what it gets, but {rule.payload!r} is none; use the payload "
            "momentum()"
        )
    if rule.outer.needs_base and not rule.payload.has_base:
        raise CompositionError(
            f"{rule.outer!r} moves from the parameters of the last exchange, which {rule.payload!r} does "
            "not keep; use the payload deltas() or the outer average()"
        )


def _check_delay(rule: Rule) -> None:
    if rule.delay == "unbounded":
        _check_unbounded(rule)
        return
    period = rule.trigger.period_steps
    if rule.payload.site == "backward":
        if rule.delay and rule.compressor.keeps_rest:
            raise CompositionError(
                f"delay {rule.delay} with {rule.compressor!r}: a gradient leaves before the one ahead is "
                "back, so both would carry the same rest; use delay 0, or deltas() or parameters()"
            )
        if rule.delay and rule.trigger.known != "start":
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


def _check_unbounded(rule: Rule) -> None:
    if rule.exchange.collective:
        raise CompositionError(
            f"delay unbounded with {rule.exchange!r}: its result arrives on each rank in another step, and "
            "then ranks would not take part in the next exchange together; use averaging_server(), or a "
            "delay in steps"
        )
    if rule.payload.site == "backward":
        raise CompositionError(
            f"delay unbounded with {rule.payload!r}: the optimizer needs a gradient in every step; use "
            "parameters() or deltas()"
        )


def _check_range(rule: Rule) -> None:
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


def _meet(one: Rule, other: Rule) -> bool:
    """Whether there is a step in which both are active."""
    stops = [stop for stop in (one.active[1], other.active[1]) if stop is not None]
    return not stops or max(one.active[0], other.active[0]) < min(stops)


def _listed(names: Collection[str]) -> str:
    shown = sorted(set(names))
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
