"""What a primitive declares of itself: one frozen value a role, each field stated, all held by checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from relaxcomm.roles.carried import Slots
from relaxcomm.roles.scope import Scope

Memory: TypeAlias = Literal["none", "leaky", "lossless"]
"""What becomes of what a message leaves out: it is gone, a part of it is sent later, or all of it."""


@dataclass(frozen=True, kw_only=True)
class TriggerFacts:
    """What a trigger declares.

    Args:
        known: whether it fires is known at the "start" of a step, after the workers' vote at the end of
            "backward", or at an "event".
        event: the event that it waits for, such as "round", or None.
        period_steps: the least number of steps from one firing to the next.
        needs: values that it looks at: `batch_size`, or what a controller gives in `init_values`.
        looks_at: numbers that the engine takes for its vote, such as "replica_distance".
        slots: what it keeps, and what becomes of each slot with another number of ranks, see `Carried`.

    Example:
        >>> from relaxcomm.primitives import every, while_below
        >>> facts = while_below(trigger=every(steps=16), value="batch_size", limit=512).facts
        >>> facts.known, facts.period_steps, sorted(facts.needs)
        ('start', 16, ['batch_size'])
    """

    known: Literal["start", "backward", "event"]
    event: str | None
    period_steps: int
    needs: frozenset[str]
    looks_at: frozenset[str]
    slots: Slots


@dataclass(frozen=True, kw_only=True)
class PayloadFacts:
    """What a payload declares.

    Args:
        site: where it is read: "backward", as gradients become ready, or "step", after the optimizer.
        is_model: it is the parameters themselves.
        is_momentum: it goes on from its last result, so that zero gradients leave something of it.
        has_base: it keeps a point from which an outer optimizer moves.
        is_move: it tells how far to go and nothing of where one is. Moves alone never bring bases together
            that differ, so the base must be the same on all ranks, and each must get the same result.
        moves_model: its result is written to the parameters; the model's buffers are then averaged with it.
        keeps_local: a part of the local parameters stays in what is written.
        extra_entries: number of entries behind those of the bucket, such as a weight.
        wide: it is read in float32 at least, whatever the type of the parameters.
        event: the event that its trigger must wait for, or None.
        hears: the events of which it takes note; None for all.
        slots: what it keeps, and what becomes of each slot with another number of ranks, see `Carried`.

    Example:
        >>> from relaxcomm.primitives import client_deltas, deltas, parameters
        >>> [(one.facts.is_move, one.facts.event) for one in (deltas(), client_deltas(), parameters())]
        [(True, None), (True, 'round'), (False, None)]
    """

    site: Literal["backward", "step"]
    is_model: bool
    is_momentum: bool
    has_base: bool
    is_move: bool
    moves_model: bool
    keeps_local: bool
    extra_entries: int
    wide: bool = False  # unless stated, as plug-ins may be older than this field
    event: str | None
    hears: frozenset[str] | None = None  # unless stated, likewise
    slots: Slots


@dataclass(frozen=True, kw_only=True)
class CompressorFacts:
    """What a compressor declares.

    Args:
        kinds: message kinds that it may yield.
        rounds: number of messages a tensor.
        scope: what it looks at to encode an entry: the "entry" alone, with a number drawn for its place if
            any, so that others can travel behind those of a bucket; its "tensor" (see `Context.layout`), its
            "bucket", or the whole "model", which then lies in one bucket for each dtype.
        linear: `C(a + b) = C(a) + C(b)` in the same step, to rounding.
        unbiased: the expectation of `C(x)` is x, to the rounding of a floating-point type, if no entry is
            beyond `clip rms(x)` and its norm is at most `max_norm`.
        clip: from how many times the root mean square on entries are cut on purpose; infinity for none.
        max_norm: from which norm on a tensor is scaled down on purpose; infinity for none.
        memory: whether what a message leaves out is in later ones: "none", "leaky", or "lossless".
        follows_results: what it sends or decodes depends on earlier results, the same for all ranks then.
        follows_clock: how a message is to be read depends on the step in which it was made.
        keeps_finite: a message of finite entries is finite, so that ranks may look at it on its way.
        slots: what it keeps, and what becomes of each slot with another number of ranks, see `Carried`.

    Example:
        >>> from relaxcomm.primitives import cast, chain, error_feedback, top_k
        >>> short = chain(compressors=(top_k(density=0.01), cast(dtype="float16")))
        >>> [(one.facts.scope, one.facts.unbiased, one.facts.memory) for one in (cast("float16"), short)]
        [('entry', True, 'none'), ('model', False, 'none')]
        >>> error_feedback(compressor=short, decay=0.9).facts.memory
        'leaky'
    """

    kinds: frozenset[str]
    rounds: int
    scope: Scope
    linear: bool
    unbiased: bool
    clip: float
    max_norm: float
    memory: Memory
    follows_results: bool
    follows_clock: bool
    keeps_finite: bool
    slots: Slots


@dataclass(frozen=True, kw_only=True)
class ExchangeFacts:
    """What an exchange declares.

    Args:
        accepts: message kinds that it can combine.
        collective: all ranks take part in each round; otherwise each goes on alone.
        same_result: every rank ends with the same tensor.
        operations: number of operations a message.
        several_rounds: all ranks see the result of a message, so that another can follow it.
        returns: a "mean" of what was put in, a "robust mean" that a worker's entries cannot move beyond what
            others have put in, the "votes" of the workers, or the payload's new "base".
        topology: it exchanges with all ranks, over a "complete" graph; over the configured "graph", or in its
            "groups".
        needs_fixed_graph: what neighbours have sent is kept, so they must stay the same.
        follows_parameters: what it keeps begins at the parameters, so that it can exchange nothing else.
        memory: whether what a message leaves out is in later ones: "none", "leaky", or "lossless".
        takes_divided: it only adds up what is divided by the number of ranks already, see `Context.divided`.
        applies_outer: its service moves the base by the rule's outer; otherwise each rank does so itself.
        slots: what it keeps, and what becomes of each slot with another number of ranks, see `Carried`.
        coding: how the compressor's slots lie among those of `coding_slots`: "whole", as they are; "inner",
            behind its own; "parts", one set for each rank's part of a bucket; or "parts and mean", one more
            of what codes the mean of this rank's part.
        service: what its service exports, and what becomes of it, likewise.

    Example:
        >>> from relaxcomm.primitives import all_reduce, gossip, server
        >>> facts = all_reduce.facts, gossip.facts, server.facts
        >>> [(one.same_result, one.returns, one.topology) for one in facts]
        [(True, 'mean', 'complete'), (False, 'mean', 'graph'), (False, 'base', 'complete')]
    """

    accepts: frozenset[str]
    collective: bool
    same_result: bool
    operations: int
    several_rounds: bool
    returns: Literal["mean", "robust mean", "votes", "base"]
    topology: Literal["complete", "graph", "groups"]
    needs_fixed_graph: bool
    follows_parameters: bool
    memory: Memory
    takes_divided: bool
    applies_outer: bool
    slots: Slots
    coding: Literal["whole", "inner", "parts", "parts and mean"]
    service: Slots


@dataclass(frozen=True, kw_only=True)
class OuterFacts:
    """What an outer declares.

    Args:
        moves_model: the model becomes what it returns; otherwise the result only feeds controllers.
        averages: it takes the combined result as it is: as the new value, or as the move from the base.
        needs_base: it moves from the payload's base along the result.
        needs_learning_rate: it reads the local optimizer's learning rate.
        needs_momentum: it takes what it gets for momentum.
        returns_direction: what it returns is a direction, which only an optimizer can turn into a step.
        measures: it looks at the combined result of all that its rule covers before it moves any of it.
        slots: what it keeps, and what becomes of each slot with another number of ranks, see `Carried`.

    Example:
        >>> from relaxcomm.primitives import average, signs, slowmo
        >>> [(one.facts.needs_base, one.facts.returns_direction) for one in (average, signs, slowmo)]
        [(False, False), (False, True), (True, False)]
    """

    moves_model: bool
    averages: bool
    needs_base: bool
    needs_learning_rate: bool
    needs_momentum: bool
    returns_direction: bool
    measures: bool
    slots: Slots


@dataclass(frozen=True, kw_only=True)
class ControllerFacts:
    """What a controller declares.

    Args:
        needs: values that it looks at: `batch_size`, or what a controller gives in `init_values`.
        needs_local: it looks at what the worker put in, so it must watch a rule of gradients.
        needs_micro_gradients: it looks at the gradients that a step accumulates, one by one.

    Example:
        >>> from relaxcomm.primitives import norm_test
        >>> norm_test.facts.needs_local, sorted(norm_test.facts.needs)
        (True, ['batch_size'])
    """

    needs: frozenset[str]
    needs_local: bool
    needs_micro_gradients: bool


@dataclass(frozen=True, kw_only=True)
class PlannerFacts:
    """What a planner declares.

    Args:
        after_steps: number of optimizer steps that are measured, at least 3; in all but the last of them
            nothing is exchanged.

    Example:
        >>> from relaxcomm_algorithms.auto import auto
        >>> auto().planner.facts.after_steps
        7
    """

    after_steps: int


Facts: TypeAlias = (
    TriggerFacts
    | PayloadFacts
    | CompressorFacts
    | ExchangeFacts
    | OuterFacts
    | ControllerFacts
    | PlannerFacts
)
