"""What the ranks agree on in a step travels in one message, and there is none if there is nothing."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import relaxcomm
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.network.operations import Agree
from relaxcomm.step.agreements import Agreements
from relaxcomm.step.world import World
from tests.engine.harness import in_process
from tests.models import CASES, make_optimizer

STEPS = 4


def counted(transport):
    """Count the agreements that a transport issues, by the step and the rule of their labels."""
    seen, issue = [], transport.issue

    def count(operation, label):
        if isinstance(operation, Agree):
            seen.append((label.step, label.rule, operation.tensor.numel()))
        return issue(operation, label)

    transport.issue = count
    return seen


def test_all_that_is_asked_is_one_message():
    def ask(group):
        transport = group.transport()
        agreements, seen = Agreements(World(transport, Statistics(transport.counters))), counted(transport)
        agreements.send(0)
        one = agreements.ask("one", torch.tensor([float(group.rank())]))
        other = agreements.ask("other", torch.tensor([1.0, 2.0], dtype=torch.float64))
        agreements.send(3)
        later = agreements.ask("later", torch.tensor([5.0]))
        agreements.send(3)
        return [answer.read().tolist() for answer in (other, later, one, one)], seen

    for answers, seen in relaxcomm.simulate(ask, 3):
        assert answers == [[3.0, 6.0], [15.0], [3.0], [3.0]]
        assert seen == [(3, "agreement", 3), (3, "later", 1)]


def test_what_is_read_must_have_been_sent():
    def ask(group):
        transport = group.transport()
        answer = Agreements(World(transport, Statistics(transport.counters))).ask("one", torch.ones(1))
        with pytest.raises(AssertionError, match="sent before it is read"):
            answer.read()

    relaxcomm.simulate(ask, 2)


def train(world, config):
    """The agreements of each step."""
    case = CASES["toy"]
    model = case.model()
    transport = world.group.transport()
    seen = counted(transport)
    optimizer = make_optimizer("plain", model)
    settings = {"bucket_bytes": 512, **config}
    with relaxcomm.attach(model, optimizer, settings, process_group=transport):
        seen.clear()  # attach has compared the model
        for step in range(STEPS):
            for x, y in (case.data(step, world.rank),):
                case.loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return seen[:]


SELSYNC = {"relative_gradient_change": {"threshold": 0.0}}
BOTH = {
    "rules": [
        {"trigger": SELSYNC, "payload": "parameters", "exchange": "all_reduce"},
        {
            "payload": "gradients",
            "compressor": {"error_feedback": {"power_sgd": {"matrix_rank": 1}}},
            "exchange": "all_reduce",
        },
    ]
}


@pytest.mark.parametrize(
    ("algorithm", "most", "what"),
    [
        ("bsp", 0, set()),
        ({"name": "local_sgd", "steps": 2}, 0, set()),
        ({"name": "selsync", "threshold": 0.1}, 1, {"vote"}),
        ("powersgd", 1, {"used parameters"}),
        ("d_psgd", 1, {"not finite"}),
        (BOTH, 2, {"used parameters", "vote"}),  # votes look at what the exchange has made of the gradients
    ],
)
def test_a_step_has_one_message_or_none(algorithm, most, what):
    for seen in in_process(train, 3, {"algorithm": algorithm, "topology": "complete"}):
        assert max(Counter(step for step, _, _ in seen).values(), default=0) == most
        assert {rule for _, rule, _ in seen} == what
