"""What a controller writes, from its first value on, and who may look at it."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import ClassVar

import pytest
import torch

from relaxcomm import Algorithm, CompositionError, Rule, attach, simulate, trajectory
from relaxcomm.checks.algorithms_hold import algorithm_checks
from relaxcomm.checks.compositions import algorithm_around
from relaxcomm.checks.controllers_hold import controller_checks
from relaxcomm.checks.finding import attempt
from relaxcomm.checks.triggers_hold import trigger_checks
from relaxcomm.config import load
from relaxcomm.plugin import Controller, ControllerFacts, Index, Trigger, TriggerFacts, frozen
from relaxcomm.primitives import (
    all_gather,
    all_reduce,
    error_feedback,
    every_step,
    gradients,
    parameters,
    top_k,
)
from tests.models import take_step


@frozen
class in_the_named_step(Trigger):
    """Fires in the step that the value `due` names; without a default, which it must not need."""

    facts: ClassVar[TriggerFacts] = TriggerFacts(
        known="start",
        event=None,
        period_steps=1,
        needs=frozenset({"due"}),
        looks_at=frozenset(),
        slots={},
    )

    def fires(self, cx):
        return cx.step == int(cx.values["due"])


@frozen
class later_and_later(Controller):
    """The next exchange comes after one step more than the last."""

    rule: Index = 0
    first: Index = 1
    writes: str = "due"

    facts: ClassVar[ControllerFacts] = ControllerFacts(
        needs=frozenset({"due"}), needs_local=False, needs_micro_gradients=False
    )

    def init_values(self):
        return {"due": self.first}

    def observe(self, cx, seen):
        return torch.zeros(1)

    def decide(self, cx, total):
        return {self.writes: 2 * cx.values["due"] + 1}


@frozen
class counts(Controller):
    """How many ranks' buckets it has seen."""

    rule: Index
    writes: str

    facts: ClassVar[ControllerFacts] = replace(later_and_later.facts, needs=frozenset())

    def init_values(self):
        return {self.writes: 0}

    def observe(self, cx, seen):
        return 1 + 0 * seen.result[:1]

    def decide(self, cx, total):
        return {self.writes: cx.values[self.writes] + total.item()}


@frozen
class adds_samples(counts):
    """The samples of all ranks' batches, or one less for each that it knows nothing of."""

    facts: ClassVar[ControllerFacts] = counts.facts

    def observe(self, cx, seen):
        return torch.tensor([-1.0 if seen.samples is None else seen.samples])


RULE = Rule(trigger=in_the_named_step(), payload=parameters(), exchange=all_reduce())


def exchanges(algorithm, steps):
    return [step for step, (a, b) in enumerate(trajectory(algorithm, [[1.0, 3.0]] * steps)) if a == b]


def test_a_trigger_reads_what_its_own_controller_writes_from_a_first_value_on():
    algorithm = Algorithm((RULE,), controllers=(later_and_later(),))
    assert exchanges(algorithm, steps=16) == [1, 3, 7, 15]
    assert exchanges(Algorithm((RULE,), controllers=(later_and_later(first=2),)), steps=12) == [2, 5, 11]
    assert not algorithm.chooses_batches  # so it takes any loader, and another algorithm may follow
    load({"algorithm": algorithm, "phases": [{"after_steps": 5, "algorithm": "bsp"}]})


@contextmanager
def attached(group, *controllers, scaler=None):
    """A model of one bucket, its optimizer, the engine, and what the controllers have written."""
    rules = (Rule(payload=gradients(), exchange=all_reduce()), replace(RULE, trigger=every_step()))
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"algorithm": Algorithm(rules, controllers=controllers)}
    with attach(model, optimizer, settings, process_group=group, scaler=scaler) as engine:
        yield model, optimizer, engine, engine._session.bound.controllers.export


def test_controllers_of_gradients_and_of_parameters_decide_in_the_same_step():
    counting = (counts(rule=0, writes="of gradients"), counts(rule=1, writes="of parameters"))

    def rank(group):
        with attached(group, *counting) as (model, optimizer, _, written):
            for _ in range(3):
                take_step(model(torch.ones(1, 2)).sum(), optimizer)
            return written()

    assert simulate(rank, 2) == [{"of gradients": 6, "of parameters": 6}] * 2


def test_nothing_is_learnt_of_a_step_that_a_scaler_skips():
    def rank(group):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        with attached(group, counts(rule=0, writes="seen"), scaler=scaler) as (model, optimizer, _, written):
            for factor in (1.0, float("inf"), 1.0):
                optimizer.zero_grad()
                scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
                scaler.step(optimizer)
                scaler.update()
            return written()

    assert simulate(rank, 2) == [{"seen": 4}] * 2


def test_a_batch_of_several_steps_has_its_samples_in_each():
    def rank(group):
        adding = adds_samples(rule=0, writes="samples")
        with attached(group, adding) as (model, optimizer, engine, written):
            take_step(model(torch.ones(1, 2)).sum(), optimizer)
            for batch in islice(engine.loader(torch.ones(16, 2), batch_size=3), 2):
                for _ in range(2):
                    take_step(model(batch).sum(), optimizer)
            return written()

    assert simulate(rank, 2) == [{"samples": 2 * (-1 + 4 * 3)}] * 2


def test_a_value_that_no_controller_gives_is_refused():
    with pytest.raises(CompositionError, match=r"looks at 'due', which no controller .* init_values give it"):
        Algorithm((RULE,))


def test_two_first_values_of_one_name_are_refused():
    two = (later_and_later(), later_and_later(first=2))
    with pytest.raises(CompositionError, match=r"'due' the first value 1, and .* gives it 2; let both give"):
        Algorithm((RULE,), controllers=two)
    assert len(Algorithm((RULE,), controllers=two[:1] * 2).controllers) == 2


def test_the_batch_size_is_the_loaders():
    @frozen
    class own_size(later_and_later):
        facts = later_and_later.facts

        def init_values(self):
            return {"batch_size": 8}

    with pytest.raises(CompositionError, match=r"first value, which is that of engine.loader; leave it out"):
        Algorithm((RULE,), controllers=(own_size(),))


def faults(checks):
    found = [attempt("it", name, run, limit_seconds=60.0) for name, run in checks.items()]
    return {one.check: one.fault for one in found if one.fault is not None}


def test_checks_hold_a_trigger_and_a_controller_to_their_values():
    assert not faults(trigger_checks(in_the_named_step()))
    assert not faults(controller_checks(later_and_later()))
    assert "; return no other names than init_values gives and facts.needs has: ['due']" in str(
        faults(controller_checks(later_and_later(writes="other")))["needs"]
    )


def test_a_trigger_is_tried_with_the_values_that_it_needs():
    around = algorithm_around(in_the_named_step())
    assert exchanges(around, steps=3) == [1]
    assert not faults({"state": algorithm_checks(around)["state"]})


def test_what_looks_at_local_alone_is_not_said_to_read_the_mean():
    watching = later_and_later()
    vars(watching)["facts"] = replace(watching.facts, needs_local=True)
    rule = Rule(payload=gradients(), compressor=error_feedback(top_k(density=0.1)), exchange=all_gather())
    with pytest.raises(
        CompositionError, match=r"looks at each worker's own gradient \(needs_local\), to comp"
    ):
        Algorithm((rule,), controllers=(watching,))
