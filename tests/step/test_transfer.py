"""What primitives are told when a result is applied."""

from __future__ import annotations

import copy
import weakref
from dataclasses import replace

import pytest
import torch

from relaxcomm import Algorithm, Link, Rule, attach, simulate, trajectory
from relaxcomm.carry.means import same
from relaxcomm.plugin import Context, Membership, Outer, frozen
from relaxcomm.primitives import (
    all_reduce,
    average,
    averaging_server,
    deltas,
    every,
    gradients,
    parameters,
    sgd,
)
from relaxcomm.step.flight import labelled
from tests.models import take_step

seen = []


def note(role, cx):
    if cx.membership.rank == 0:
        seen.append((role, cx.round, cx.samples, cx.layout.numel, cx.bucket_part))


@frozen
class noting(Outer):
    facts = sgd.facts

    def apply(self, cx, bucket, state, result, base):
        note("apply", cx)
        return base - result


@frozen
class noting_mean(Outer):
    facts = average.facts

    def apply(self, cx, bucket, state, result, base):
        note("apply", cx)
        return result


@frozen
class noted_deltas(deltas):
    facts = deltas().facts

    def finalize(self, cx, bucket, state, result):
        note("finalize", cx)
        return deltas.finalize(self, cx, bucket, state, result)

    def write(self, cx, bucket, state, value, snapshot):
        note("write", cx)
        deltas.write(self, cx, bucket, state, value, snapshot)


def run(rule, steps, *, size=2, state=None, link=None):
    """The state of each rank after some steps."""

    def rank(group):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model, optimizer, Algorithm((rule,)), process_group=group) as engine:
            if state is not None:
                engine.load_run_state_dict(state[group.rank()])
            for _ in range(steps):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                group.sleep(1.0)
            return copy.deepcopy(engine.run_state_dict())

    seen.clear()
    return simulate(rank, size, link=link)


def deltas_of(*, exchange=None, delay):
    exchange = exchange or all_reduce()
    return Rule(
        trigger=every(steps=2), payload=noted_deltas(), exchange=exchange, outer=noting(), delay=delay
    )


ROLES = ("finalize", "apply", "write")


@pytest.mark.parametrize("delay", [0, 1, "unbounded"])
def test_primitives_are_told_of_the_exchange_whose_result_it_is(delay):
    exchange = averaging_server() if delay == "unbounded" else None
    run(deltas_of(exchange=exchange, delay=delay), 7, link=Link(latency_seconds=0.1))
    assert seen == [(role, round, 2, 3, (0,)) for round in range(3) for role in ROLES]


def test_a_checkpoint_holds_it():
    rule = deltas_of(delay=1)
    states = run(rule, 4)
    for state in states:
        (late,) = state["engine"]["late_parameters"]
        assert late[6:] == [1, 2]
    run(rule, 1, state=states)
    assert seen == [(role, 1, 2, 3, (0,)) for role in ROLES]


def test_a_checkpoint_holds_it_of_gradients():
    rule = Rule(payload=gradients(), exchange=all_reduce(), outer=noting_mean(), delay=1)
    states = run(rule, 3)
    for state in states:
        (late,) = state["engine"]["late_gradients"]
        assert late[4:] == [2, 1]
    run(rule, 1, state=states)
    assert seen[0] == ("apply", 2, 1, 3, (0,))


@frozen
class taking_turns(all_reduce):
    """In every other round each rank goes on from what it has."""

    facts = replace(all_reduce.facts)

    def run(self, cx, tensor, compressor, state):
        if cx.round % 2:
            return tensor
        return (yield from all_reduce.run(self, cx, tensor, compressor, state))


def test_an_exchange_may_send_nothing_in_a_round():
    rule = Rule(payload=parameters(), exchange=taking_turns())
    assert trajectory(rule, [[0.0, 2.0]] * 3).tolist() == [[1, 1], [1, 3], [3, 3]]


def test_what_a_server_is_sent_is_not_held_until_it_answers():
    rule, tensor = Rule(payload=parameters(), exchange=averaging_server()), torch.ones(4)
    cx = Context(0, 0, Membership(0, 2), lambda bucket: 0.1)
    program = labelled("pushed", rule, rule.exchange.run(cx, tensor, rule.compressor, {}), 4)
    _, request = next(program)
    sent, came = weakref.ref(request.tensor), request.reply
    del request
    assert sent() is None
    came.zero_()
    with pytest.raises(StopIteration):
        program.send(came)
    assert not tensor.any()


def test_a_state_can_be_loaded_again():
    """A late result moves the model by memory that it overwrites."""

    def train(group):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        late = Rule(payload=parameters(), exchange=all_reduce(), delay=1)
        with attach(model, optimizer, Algorithm(rules=(late,)), process_group=group) as engine:
            for _ in range(2):
                take_step(model(torch.ones(1, 2)).sum() * group.rank(), optimizer)
            state = engine.state_dict()
            before = copy.deepcopy(state)
            engine.load_state_dict(state)
            take_step(model(torch.ones(1, 2)).sum() * group.rank(), optimizer)
            return same(state, before)

    assert simulate(train, 2) == [True, True]
