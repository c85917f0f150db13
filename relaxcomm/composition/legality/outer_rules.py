"""Which outers a rule can have."""

from __future__ import annotations

from relaxcomm.composition.rule_parts import RuleParts
from relaxcomm.errors import CompositionError


def check_outer(rule: RuleParts) -> None:
    """Refuse an outer that the rule's payload, exchange or delay gives nothing to work with.

    Raises: CompositionError, with what was got, what is allowed and what to do.
    """
    if not rule.outer.facts.moves_model and (rule.payload.facts.site != "backward" or rule.delay):
        raise CompositionError(
            f"{rule.outer!r} leaves the payload alone, which is for gradients() without delay; got "
            f"{rule.payload!r} with delay {rule.delay}; choose another outer, such as average()"
        )
    if rule.outer.facts.returns_direction and rule.payload.facts.site != "backward":
        raise CompositionError(
            f"{rule.outer!r} makes a direction for the optimizer, but {rule.payload!r} does not reach it; "
            "use the payload gradients()"
        )
    if rule.outer.facts.needs_momentum and not rule.payload.facts.is_momentum:
        raise CompositionError(
            f"{rule.outer!r} takes momentum for what it gets, but {rule.payload!r} is none; use the payload "
            "momentum()"
        )
    if rule.outer.facts.needs_base and not rule.payload.facts.has_base:
        instead = "use the payload deltas() or the outer average()"
        if not rule.outer.facts.moves_model:
            instead = "an outer that moves nothing declares needs_base=False"
        raise CompositionError(
            f"{rule.outer!r} needs the parameters of the last exchange, which {rule.payload!r} does not "
            f"keep; {instead}"
        )
    rule.outer.check_period(rule.trigger.facts.period_steps)
    if rule.outer.facts.measures:
        _check_measuring(rule)


def _check_measuring(rule: RuleParts) -> None:
    """Refuse an outer that looks at the whole model where that is never there as a whole."""
    whole = f"{rule.outer!r} looks at the result of the whole model"
    if rule.payload.facts.site == "backward":
        raise CompositionError(
            f"{whole}, but {rule.payload!r} are exchanged a bucket at a time while backward goes on; clip "
            "what is in .grad after backward, which is averaged by then, or use deltas() or parameters()"
        )
    if rule.delay == "unbounded":
        raise CompositionError(
            f"{whole}, but with delay 'unbounded' each bucket is applied when it arrives; use a number of "
            "steps"
        )
    if rule.exchange.facts.returns == "base":
        raise CompositionError(
            f"{whole}, but {rule.exchange!r} returns the new parameters themselves and leaves an outer "
            "nothing to do; use another exchange, such as all_reduce()"
        )


def check_served_outer(rule: RuleParts, *, moves_base: bool) -> None:
    """Refuse what a service that holds the model cannot move it by.

    Args:
        rule: whose exchange applies the outer.
        moves_base: whether its payload tells how far to go from a base.

    Raises: CompositionError, with what was got, what is allowed and what to do.
    """
    if not moves_base:
        raise CompositionError(
            f"{rule.exchange!r} moves the model by what workers have moved, so it needs the payload "
            f"deltas(); got {rule.payload!r}"
        )
    facts = rule.outer.facts
    if facts.needs_learning_rate or facts.returns_direction or facts.needs_momentum or facts.measures:
        raise CompositionError(
            f"{rule.exchange!r} moves the model where it lies, a part on each rank, and {rule.outer!r} needs "
            "a worker's optimizer or the whole model; use average(), sgd(), nesterov(), adam(), yogi() or "
            "adagrad()"
        )
