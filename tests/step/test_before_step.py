"""What a payload does just before the optimizer's step, wherever it is read, and whatever is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from relaxcomm import Algorithm, Rule, attach, simulate, trajectory
from relaxcomm.plugin import frozen
from relaxcomm.primitives import all_reduce, deltas, every, gradients, parameters


class Pulling:
    def before_step(self, cx, bucket, state):
        for item in bucket.items:
            item.grad.add_(1.0)


@frozen
class pulled_gradients(Pulling, gradients):
    facts = gradients.facts


@frozen
class pulled_parameters(Pulling, parameters):
    facts = parameters.facts


@pytest.mark.parametrize("payload", [pulled_gradients(), pulled_parameters()], ids=repr)
def test_gradients_are_changed(payload):
    rule = Rule(payload=payload, exchange=all_reduce())
    assert trajectory(rule, [[1.0, 3.0]] * 2).tolist() == [[1.0, 1.0], [2.0, 2.0]]


@pytest.mark.filterwarnings("ignore:.*replicas part for good")
@pytest.mark.parametrize("payload", [pulled_gradients(), pulled_parameters()], ids=repr)
def test_so_they_are_as_long_as_the_rule_is_active(payload):
    rule = Rule(payload=payload, exchange=all_reduce(), active=(0, 1))
    assert trajectory(rule, [[1.0, 3.0]] * 2).tolist() == [[1.0, 1.0], [2.0, 4.0]]


@frozen
class counted_deltas(deltas):
    facts = replace(deltas().facts, slots={"anchor": "equal", "steps": "equal"})

    def init(self, bucket):
        return {**super().init(bucket), "steps": torch.zeros(())}

    def before_step(self, cx, bucket, state):
        state["steps"] = state["steps"] + 1


def test_what_it_counts_is_kept_where_an_exchange_is_given_up():
    rule = Rule(trigger=every(steps=4), payload=counted_deltas(), exchange=all_reduce())

    def program(group):
        model = torch.nn.Linear(2, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        settings = {"algorithm": Algorithm((rule,), name="counted")}
        with attach(model, optimizer, settings, process_group=group) as engine:
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            state = engine._session.bound.state
            state.give_up()  # as where a worker is lost
            return [float(slots["payload"]["steps"]) for slots in state.slots.values()]

    assert simulate(program, 2) == [[3.0], [3.0]]
