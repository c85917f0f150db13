"""What is kept of votes: of a step that is given up or fails nothing, and of two triggers to each its own."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from relaxcomm import Algorithm, NonFiniteError, Rule, attach, simulate
from relaxcomm.plugin import Agreement, Index, TriggerFacts, VotingTrigger, frozen
from relaxcomm.primitives import all_reduce, gossip, gradients, parameters, relative_gradient_change
from relaxcomm.topology import ring
from tests.models import take_step


def attached(group, algorithm):
    model = nn.ModuleDict({"a": nn.Linear(2, 1, bias=False), "b": nn.Linear(2, 1, bias=False)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, attach(model, optimizer, {"algorithm": algorithm}, process_group=group)


def loss(model, of=1.0):
    return sum(part(torch.full((1, 2), of)).sum() for part in model.values())


def test_a_vote_that_is_given_up_may_be_cast_again():
    def program(group):
        model, optimizer, engine = attached(group, {"name": "selsync", "window_steps": 1})
        with engine:
            take_step(loss(model), optimizer)
            votes = engine._session.bound.votes
            before = votes.export()
            loss(model).backward()
            votes.give_up()  # as where a worker is lost
            return before, votes.export()

    for before, after in simulate(program, 2):
        assert after == before
        assert not before["answers"]


def test_a_step_that_has_failed_on_all_ranks_leaves_no_vote():
    """Of whose NaN not all have learned when they vote."""
    rules = (
        Rule(payload=gradients(), exchange=gossip(topology=ring()), select="a.*"),
        Rule(
            trigger=relative_gradient_change(threshold=0.25),
            payload=parameters(),
            exchange=all_reduce(),
            select="b.*",
        ),
    )

    def program(group):
        model, optimizer, engine = attached(group, Algorithm(rules))
        with engine:
            take_step(loss(model), optimizer)
            votes = engine._session.bound.votes
            before = votes.export()
            with pytest.raises(NonFiniteError):
                take_step(loss(model, float("nan") if group.rank() == 2 else 1.0), optimizer)
            return before, votes.export()

    for before, after in simulate(program, 4):
        assert after == before


@frozen
class in_one_step(VotingTrigger):
    """One worker votes for one step."""

    step: Index
    agree: Agreement = "any"

    facts: ClassVar[TriggerFacts] = relative_gradient_change.facts

    def vote(self, cx, state, observation):
        return cx.membership.rank == 1 and cx.step == self.step


def test_each_of_two_triggers_has_its_own_votes():
    rules = tuple(
        Rule(trigger=in_one_step(step=step), payload=parameters(), exchange=all_reduce(), select=select)
        for step, select in ((1, "a.*"), (2, "b.*"))
    )

    def program(group):
        model, optimizer, engine = attached(group, Algorithm(rules))
        with engine:
            for _ in range(4):
                take_step(loss(model, 1.0 + group.rank()), optimizer)
                yield [part.weight[0, 0].item() for part in model.values()]

    first, second = simulate(lambda group: [*program(group)], 2)
    equal = [
        [one == other for one, other in zip(*both, strict=True)] for both in zip(first, second, strict=True)
    ]
    assert equal == [[False, False], [True, False], [False, True], [False, False]]
