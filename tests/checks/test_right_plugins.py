"""Plug-ins that are right, however unusual, pass the checks of their role."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import pytest
import torch

from relaxcomm import CompositionError, Rule
from relaxcomm.checks.algorithms_hold import algorithm_checks
from relaxcomm.checks.compositions import algorithm_around
from relaxcomm.checks.compressor_repeats import ranks_do_alike
from relaxcomm.checks.compressors_hold import messages_are_declared
from relaxcomm.checks.controllers_hold import controller_checks
from relaxcomm.checks.finding import Broken
from relaxcomm.checks.payloads_hold import payload_checks
from relaxcomm.checks.triggers_hold import trigger_checks
from relaxcomm.plugin import (
    DENSE,
    Agreement,
    Compressor,
    CompressorFacts,
    Controller,
    ControllerFacts,
    Dense,
    Payload,
    PayloadFacts,
    Trigger,
    TriggerFacts,
    VotingTrigger,
    frozen,
)
from relaxcomm.primitives import all_reduce, gradients, parameters

_FIRST, _SECOND = frozenset({"rung"}), frozenset({"mode"})


@frozen
class ladder(Controller):
    """Goes down a list of periods."""

    rule: int = 0
    periods: tuple[int, ...] = (1, 2, 4, 8)
    facts: ClassVar[ControllerFacts] = ControllerFacts(
        needs=_FIRST, needs_local=True, needs_micro_gradients=False
    )

    def init_values(self):
        return {"rung": 0.0, "due": 1.0}

    def observe(self, cx, seen):
        return torch.stack([seen.local.square().sum(), seen.result.square().sum()])

    def decide(self, cx, total):
        rung = int(cx.values["rung"])
        return {"rung": float(rung), "due": float(cx.step + self.periods[rung])}


@frozen
class by_mode(Trigger):
    """Looks its period up in a table."""

    needs: frozenset[str] = _SECOND

    @property
    def facts(self):
        return TriggerFacts(
            known="start", event=None, period_steps=1, needs=self.needs, looks_at=frozenset(), slots={}
        )

    def fires(self, cx):
        return (cx.step - cx.start) % (1, 4, 16)[int(cx.values["mode"])] == 0


@frozen
class from_first(Trigger):
    """Fires in the first step, and every 8 from it."""

    period: int = 8

    @property
    def facts(self):
        return TriggerFacts(
            known="start",
            event=None,
            period_steps=self.period,
            needs=frozenset(),
            looks_at=frozenset(),
            slots={},
        )

    def fires(self, cx):
        return (cx.step - cx.start) % 8 == 0


@frozen
class seldom(Compressor):
    """The whole tensor over p with the probability p, else nothing; or never, on some ranks."""

    p: float = 0.1
    silent: bool = False
    facts: ClassVar[CompressorFacts] = CompressorFacts(
        kinds=frozenset({DENSE}),
        rounds=1,
        scope="bucket",
        linear=True,
        unbiased=True,
        clip=math.inf,
        max_norm=math.inf,
        memory="none",
        follows_results=False,
        follows_clock=False,
        keeps_finite=True,
        slots={},
        most_entries=math.inf,
    )

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        yes = bool(torch.rand(1, generator=cx.generator(7, tensor.device)) < self.p)
        sent = (
            tensor / self.p if yes and not (self.silent and cx.membership.rank) else torch.zeros_like(tensor)
        )
        parts = yield Dense(sent.clone())
        return sum(weight * message.tensor for weight, message in parts), sent

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes


@pytest.mark.parametrize("name", ["inputs", "needs", "ranks"])
def test_a_controller_looks_its_own_value_up_in_a_table(name):
    controller_checks(ladder())[name]()


@pytest.mark.parametrize("trigger", [by_mode(), from_first()], ids=repr)
def test_a_trigger_passes(trigger):
    for run in trigger_checks(trigger).values():
        run()


def test_a_table_hides_no_value_that_is_not_declared():
    with pytest.raises(Broken, match=r"looks at \['mode'\]"):
        trigger_checks(by_mode(needs=frozenset()))["needs"]()


def test_firings_that_are_closer_than_declared_are_found():
    with pytest.raises(Broken, match="declares at least 9 steps between two firings, fires after 8"):
        trigger_checks(from_first(period=9))["firing"]()


def test_a_compressor_may_seldom_send():
    ranks_do_alike(seldom())
    with pytest.raises(Broken, match=r"in 200 steps ranks \[1, 2\] of 3 send the same each time"):
        ranks_do_alike(seldom(silent=True))


COIN = TriggerFacts(
    known="backward", event=None, period_steps=1, needs=frozenset(), looks_at=frozenset(), slots={}
)


def from_context(cx):
    return torch.rand(1, generator=cx.generator(0, torch.device("cpu")))


def same_on_all(cx):
    return torch.rand(1, generator=torch.Generator().manual_seed(cx.step))


@frozen
class coin(VotingTrigger):
    """Each worker draws."""

    agree: ClassVar[Agreement] = "any"
    facts: ClassVar[TriggerFacts] = COIN

    def vote(self, cx, state, observation):
        return bool(from_context(cx) < 0.25)


@frozen
class same_coin(Trigger):
    """All draw alike, or should."""

    draw: Callable[..., Any]
    facts: ClassVar[TriggerFacts] = replace(COIN, known="start")

    def fires(self, cx):
        return bool(self.draw(cx) < 0.25)


@pytest.mark.parametrize("trigger", [coin(), same_coin(draw=same_on_all)])
def test_a_trigger_may_draw_numbers(trigger):
    trigger_checks(trigger)["firing"]()


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (from_context, "fires in other steps on another rank, though nobody votes; .*manual_seed"),
        (lambda cx: random.random(), "global generator of python, .* to fire without a vote, .*manual_seed"),
    ],
)
def test_numbers_that_differ_among_ranks_are_not_taken_for_counts(draw, said):
    with pytest.raises(Broken, match=said):
        trigger_checks(same_coin(draw=draw))["firing"]()


@frozen
class at_stage(Trigger):
    """Fires where the loop says engine.mark("stage")."""

    facts: ClassVar[TriggerFacts] = replace(COIN, known="event", event="stage")

    def fires(self, cx):
        return cx.event == "stage"


@frozen
class of_stage(parameters):
    """Counts the stages."""

    facts: ClassVar[PayloadFacts] = replace(
        parameters.facts, event="stage", hears=frozenset({"stage"}), slots={"sum": "equal"}
    )

    def init(self, bucket):
        return {"sum": torch.zeros(())}

    def event(self, cx, bucket, state, event, facts):
        if event == "stage":
            state["sum"] = state["sum"] + 1


@frozen
class deaf(parameters):
    """Waits for a stage, of which it takes no note."""

    facts: ClassVar[PayloadFacts] = replace(parameters.facts, event="stage")


@frozen
class in_passing(of_stage):
    """Counts the stages, and waits for none."""

    facts: ClassVar[PayloadFacts] = replace(of_stage.facts, event=None)


@pytest.mark.parametrize("primitive", [at_stage(), of_stage(), deaf(), in_passing()])
def test_an_event_may_be_a_plug_ins_own(primitive):
    checks = trigger_checks if isinstance(primitive, Trigger) else payload_checks
    for run in checks(primitive).values():
        run()
    around = algorithm_checks(algorithm_around(primitive))
    for name in ("exchanges", "state"):
        around[name]()


@frozen
class of_measured_stage(of_stage):
    """Adds up what the loop says in engine.mark("stage", loss=…)."""

    facts: ClassVar[PayloadFacts] = of_stage.facts

    def event(self, cx, bucket, state, event, facts):
        if event == "stage":
            state["sum"] = state["sum"] + facts["loss"]


def test_an_event_comes_without_numbers_in_trial_runs():
    for run in payload_checks(of_measured_stage()).values():
        run()
    with pytest.raises(Broken, match=r"'loss' at the event 'stage', .*facts.get\(name, …\)"):
        algorithm_checks(algorithm_around(of_measured_stage()))["exchanges"]()


@frozen
class of_nothing(of_stage):
    """Takes note of events, and declares to hear of none."""

    facts: ClassVar[PayloadFacts] = replace(of_stage.facts, hears=frozenset())


def test_events_that_nobody_would_tell_of_are_named():
    with pytest.raises(CompositionError, match=r"of_nothing\(\) has an event\(\), which nobody calls"):
        Rule(trigger=at_stage(), payload=of_nothing(), exchange=all_reduce())


@frozen
class passed_on(parameters):
    """What another payload declares, which is told of events if it hears any."""

    payload: Payload

    @cached_property
    def facts(self):
        return self.payload.facts

    def event(self, cx, bucket, state, event, facts):
        self.payload.event(cx, bucket, state, event, facts)


def test_what_wraps_a_payload_hears_what_that_does():
    made = [passed_on(payload=one) for one in (parameters(), in_passing())]
    rules = [Rule(payload=one, exchange=all_reduce()) for one in made]
    assert [sorted(one.payload.facts.hears) for one in rules] == [[], ["stage"]]


def test_events_that_differ_are_named():
    with pytest.raises(CompositionError, match=r"waits for no event, and .*event 'stage'; take two"):
        Rule(trigger=at_stage(), payload=parameters(), exchange=all_reduce())


@frozen
class in_float32(Compressor):
    """What is sent is kept in float32, and the result rounded to the tensor's type."""

    facts: ClassVar[CompressorFacts] = replace(seldom.facts, unbiased=False)
    scale: float = 1.0

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        sent = torch.round(tensor.float() * 300) / 300
        parts = yield Dense(sent.clone())
        result = self.scale * sum(weight * message.tensor for weight, message in parts)
        return result.to(tensor.dtype), sent

    def message_bytes(self, numel, element_bytes):
        return 4 * numel


def test_what_was_sent_may_be_more_precise_than_the_result():
    messages_are_declared(in_float32())
    with pytest.raises(Broken, match=r"alone, of torch.float32, the result is not what its own messages"):
        messages_are_declared(in_float32(scale=1.1))


@frozen
class remembered_gradients(gradients):
    """Half of each gradient and of the last mean, which the slot is assigned before it is scaled."""

    facts = replace(gradients.facts, is_momentum=True, slots={"last": "equal"})

    def init(self, bucket):
        return {"last": bucket.zeros()}

    def read(self, cx, bucket, state, out):
        if cx.gradient_scale is not None:
            out.div_(cx.gradient_scale)
        return out.add_(state["last"]).mul_(0.5)

    def write(self, cx, bucket, state, value, snapshot):
        state["last"] = value.to(state["last"].dtype)  # of what is lent a slot keeps a copy
        if cx.gradient_scale is not None:
            value.mul_(cx.gradient_scale)


def test_a_payload_may_assign_the_value_that_it_scales_afterwards():
    for run in payload_checks(remembered_gradients()).values():
        run()
