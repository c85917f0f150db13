"""A payload that makes something of gradients is given this rank's own, once a step."""

from typing import ClassVar

import pytest
import torch

from relaxcomm import Algorithm, Rule, UsageError, attach, simulate, trajectory
from relaxcomm.plugin import Payload, PayloadFacts, frozen
from relaxcomm.primitives import all_gather, all_reduce, gradients, momentum


@frozen
class clipped_gradients(Payload):
    """Each rank's gradient with a norm of 1 at most."""

    facts: ClassVar[PayloadFacts] = gradients.facts

    def read(self, cx, bucket, state, out):
        return out.div_(out.norm().clamp(min=1.0))

    def write(self, cx, bucket, state, value, snapshot):
        pass


@pytest.mark.parametrize("exchange", [all_reduce(), all_gather()], ids=repr)
def test_its_mean_is_taken_of_what_it_makes(exchange):
    rule = Rule(payload=clipped_gradients(), exchange=exchange)
    found = trajectory(rule, [[0.5, 4.0], [0.5, -4.0], [0.5, 0.25]])
    torch.testing.assert_close(found[:, 0], torch.tensor([0.75, 0.5, 0.875]))


@pytest.mark.parametrize("payload", [clipped_gradients(), momentum(beta=0.5)], ids=repr)
def test_two_backwards_of_a_step_are_refused(payload):
    def program(group):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rule = Rule(payload=payload, exchange=all_reduce())
        with attach(model, optimizer, Algorithm((rule,)), process_group=group):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            for _ in range(2):
                model(torch.ones(1, 2)).sum().backward()

    with pytest.raises(UsageError, match="makes something of gradients, so exchanging twice"):
        simulate(program, 2)
