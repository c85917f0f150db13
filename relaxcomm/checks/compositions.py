"""A small algorithm around any one primitive, so that it is checked in a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from relaxcomm.checks.finding import Broken
from relaxcomm.checks.world_sizes import fitting
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.errors import CompositionError, CompositionWarning
from relaxcomm.fields.frozen import Declared, Index, frozen
from relaxcomm.primitives.compressors.error_feedback import error_feedback
from relaxcomm.primitives.compressors.sign import sign
from relaxcomm.primitives.controllers.norm_test import norm_test
from relaxcomm.primitives.exchanges.all_reduce import all_reduce
from relaxcomm.primitives.exchanges.exchange_for import exchange_for
from relaxcomm.primitives.exchanges.gossip import gossip
from relaxcomm.primitives.exchanges.push_sum import push_sum
from relaxcomm.primitives.outers.observe import observe
from relaxcomm.primitives.payloads.client_deltas import client_deltas
from relaxcomm.primitives.payloads.deltas import deltas
from relaxcomm.primitives.payloads.gradients import gradients
from relaxcomm.primitives.payloads.momentum import momentum
from relaxcomm.primitives.payloads.parameters import parameters
from relaxcomm.primitives.triggers.every import every
from relaxcomm.primitives.triggers.every_round import every_round
from relaxcomm.roles import (
    Context,
    Controller,
    ControllerFacts,
    Exchange,
    ExchangedBucket,
    PayloadFacts,
    Trigger,
    TriggerFacts,
)
from relaxcomm.roles.controller import BATCH_SIZE

_Builds = Sequence[Callable[[Any], Algorithm]]


def _one(**parts: Any) -> Algorithm:
    return Algorithm((Rule(**parts),), name="around")


def _controlled(controller: Any, *rules: Rule) -> Algorithm:
    return Algorithm(rules, name="around", controllers=(controller,))


@frozen
class _first_values(Controller):
    """Gives the values that a trigger looks at, and leaves them as they are."""

    names: tuple[str, ...]
    rule: Index = 0

    facts: ClassVar[ControllerFacts] = ControllerFacts(
        needs=frozenset(), needs_local=False, needs_micro_gradients=False
    )

    def init_values(self) -> Mapping[str, float]:
        return dict.fromkeys(self.names, 1.0)

    def observe(self, cx: Context, seen: ExchangedBucket) -> Tensor:
        return torch.zeros(1)

    def decide(self, cx: Context, total: Tensor) -> Mapping[str, float]:
        return {}


@frozen
class _at(Trigger):
    """Fires at an event of which the training loop tells."""

    event: str

    @property
    def facts(self) -> TriggerFacts:
        return replace(every_round.facts, event=self.event)

    def fires(self, cx: Context) -> bool:
        return cx.event == self.event


@frozen
class _parameters_at(parameters):
    """The parameters, exchanged at such an event."""

    awaited: str

    @property
    def facts(self) -> PayloadFacts:  # type: ignore[override]  # of an argument
        return replace(parameters.facts, event=self.awaited)


def _triggered(trigger: Any) -> Algorithm:
    rule = Rule(trigger=trigger, payload=parameters(), exchange=all_reduce())
    names = tuple(sorted(trigger.facts.needs - {BATCH_SIZE}))
    return _controlled(_first_values(names=names), rule) if names else Algorithm((rule,), name="around")


def _over(topology: Any) -> Exchange:
    """Gossip, or push-sum for a graph of which that alone keeps the mean."""
    needs_push_sum = not _is_fit(topology, balanced=True) and _is_fit(topology, balanced=False)
    return push_sum(topology=topology) if needs_push_sum else gossip(topology=topology)


def _is_fit(topology: Any, *, balanced: bool) -> bool:
    """Whether it takes any number of workers."""
    return next(fitting(partial(topology.check, balanced=balanced)), None) is not None


_TEST = norm_test(rule=1, tolerance=0.8, max_batch_size=16)
_TWO = (  # one that trains, and one that a controller looks at
    Rule(payload=gradients(), exchange=all_reduce()),
    Rule(payload=gradients(), exchange=all_reduce(), outer=observe()),
)
_AROUND: dict[str, _Builds] = {
    "trigger": (
        _triggered,
        lambda one: _one(trigger=one, payload=client_deltas(), exchange=all_reduce()),
        lambda one: _one(
            trigger=one, payload=_parameters_at(awaited=str(one.facts.event)), exchange=all_reduce()
        ),
    ),
    "payload": (
        lambda one: _one(payload=one, exchange=all_reduce()),
        lambda one: _one(trigger=every_round(), payload=one, exchange=all_reduce()),
        lambda one: _one(trigger=_at(event=str(one.facts.event)), payload=one, exchange=all_reduce()),
        lambda one: Algorithm((_TWO[0], Rule(payload=one, exchange=all_reduce())), name="around"),
    ),
    "compressor": (
        lambda one: _one(payload=gradients(), compressor=_with_feedback(one), exchange=exchange_for(one)),
    ),
    "exchange": (
        lambda one: _one(trigger=every(steps=4), payload=parameters(), exchange=one),
        lambda one: _one(trigger=every(steps=4), payload=deltas(), exchange=one),
        lambda one: _one(payload=gradients(), compressor=sign(), exchange=one),
    ),
    "outer": (
        lambda one: _one(payload=gradients(), exchange=all_reduce(), outer=one),
        lambda one: _one(payload=momentum(), exchange=all_reduce(), outer=one),
        lambda one: _one(trigger=every(steps=4), payload=deltas(), exchange=all_reduce(), outer=one),
        lambda one: _controlled(_TEST, _TWO[0], Rule(payload=gradients(), exchange=all_reduce(), outer=one)),
    ),
    "controller": (
        lambda one: _controlled(one, Rule(payload=gradients(), exchange=all_reduce())),
        lambda one: _controlled(one, *_TWO),
    ),
    "topology": (lambda one: _one(payload=parameters(), exchange=_over(one)),),
}


def algorithm_around(primitive: Declared) -> Algorithm | None:
    """An algorithm in which a primitive takes part; None for a role that no rule has.

    Raises: Broken if none that was tried is legal.
    """
    refused: list[str] = []
    for build in _AROUND.get(primitive.role, ()):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CompositionWarning)
                return build(primitive)
        except CompositionError as error:
            refused.append(str(error))
    if refused:
        raise Broken(f"no composition that was tried is legal: {refused[0]}")
    return None


def _with_feedback(compressor: Any) -> Any:
    wanting = not compressor.facts.unbiased and compressor.facts.memory == "none"
    return error_feedback(compressor=compressor) if wanting else compressor
