"""What is late when a run ends is applied once, and nothing else with it."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import Algorithm, Link, Rule, attach, simulate
from relaxcomm.primitives import (
    all_reduce,
    averaging_server,
    deltas,
    every,
    gradients,
    parameters,
    scatter_gather,
)
from tests.models import take_step


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))

    def forward(self, x):
        return (self.a + self.b) * x


def late(select, delay):
    return Rule(payload=gradients(), exchange=all_reduce(), delay=delay, select=select)


EIGHT_BITS = {  # no flag travels behind its codes
    "payload": "gradients",
    "exchange": "scatter_gather",
    "compressor": {"quantize": {"bits": 8}},
    "delay": 1,
}
LOCAL = Rule(trigger=every(steps=2), payload=parameters(), exchange=all_reduce(), select="a")


@pytest.mark.parametrize("switches", [False, True])
@pytest.mark.parametrize(
    "rules", [(late("a", 0), late("b", 1)), (late("a", 3), late("b", 1)), (LOCAL, late("b", 2))], ids=str
)
def test_each_gradient_is_applied_once(rules, switches):
    def rank(group):
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with attach(model, optimizer, Algorithm(rules), process_group=group) as engine:
            for _ in range(4):
                optimizer.zero_grad()
                (-(1.0 + group.rank()) * model(torch.ones(1))).sum().backward()
                optimizer.step()
            if switches:
                engine.switch("bsp")
        return model.a.item(), model.b.item()

    assert simulate(rank, 3) == [(8.0, 8.0)] * 3  # four steps of the mean, 2


def test_what_a_server_still_averages_is_applied_once():
    """Ranks take leave of it while their last gradients are on their way there."""
    first, second = (
        Rule(payload=gradients(), exchange=averaging_server(), delay=2, select=select) for select in "ab"
    )

    def rank(group):
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with attach(model, optimizer, Algorithm((first, second)), process_group=group):
            for _ in range(4):
                group.sleep(1.0 + 0.2 * group.rank())
                optimizer.zero_grad()
                (-(1.0 + group.rank()) * model(torch.ones(1))).sum().backward()
                optimizer.step()
        return model.a.item(), model.b.item()

    assert simulate(rank, 3, link=Link(latency_seconds=0.01)) == [(8.0, 8.0)] * 3


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_buckets_are_drained_side_by_side(bucket_bytes):
    rule = Rule(payload=gradients(), exchange=scatter_gather(), delay=1)
    config = {"algorithm": Algorithm((rule,)), "bucket_bytes": bucket_bytes}

    def rank(group):
        model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model, optimizer, config, process_group=group):
            for _ in range(2):
                take_step(model(torch.ones(1, 4)).sum(), optimizer)
            ended = group.time()
        return group.time() - ended

    # Two messages that wait for each other.
    assert simulate(rank, 3, link=Link(latency_seconds=1.0)) == [2.0] * 3


@pytest.mark.parametrize("payload", [gradients(), deltas()])
def test_what_is_late_is_saved_side_by_side(payload):
    trigger = every(steps=1 if payload == gradients() else 2)
    rule = Rule(trigger=trigger, payload=payload, exchange=scatter_gather(), delay=2)
    config = {"algorithm": Algorithm((rule,)), "bucket_bytes": 1}

    def rank(group):
        model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model, optimizer, config, process_group=group) as engine:
            for _ in range(2):
                take_step(model(torch.ones(1, 4)).sum(), optimizer)
            asked = group.time()
            engine.state_dict()
            return group.time() - asked

    # Two messages that wait for each other, and of parameters whether they are finite.
    seconds = 2.0 if payload == gradients() else 3.0
    assert simulate(rank, 3, link=Link(latency_seconds=1.0)) == [seconds] * 3


def test_what_was_frozen_meanwhile_stays_as_it_is():
    def rank(group):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
        engine = attach(model, optimizer, {"algorithm": "delayed_sgd"}, process_group=group)
        for step in range(5):
            if step == 2:
                model[0].requires_grad_(False)
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        before, other = model[0].weight.detach().clone(), model[1].weight.detach().clone()
        engine.close()
        return torch.equal(before, model[0].weight), torch.equal(other, model[1].weight)

    assert simulate(rank, 3) == [(True, False)] * 3


@pytest.mark.parametrize("switches", [False, True])
@pytest.mark.parametrize("frozen_on", [(0,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize(
    "rule", [{"exchange": "all_reduce"}, EIGHT_BITS], ids=lambda rule: rule.get("exchange")
)
def test_what_was_sent_before_it_was_frozen_is_applied_on_all_ranks(rule, frozen_on, switches):
    def rank(group):
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        algorithm = {"rules": [{"payload": "gradients", **rule, "delay": 2}]}
        with attach(
            model, optimizer, {"algorithm": algorithm, "bucket_bytes": 4}, process_group=group
        ) as engine:
            for step in range(5):
                model.a.requires_grad_(step < 4 or group.rank() not in frozen_on)
                optimizer.zero_grad()
                (-model(torch.ones(1))).sum().backward()
                optimizer.step()
            if switches:
                engine.switch("bsp")
        return model.a.item(), model.b.item()

    first, *others = simulate(rank, 3)
    assert others == [first, first]
    assert first == pytest.approx((5 - len(frozen_on) / 3, 5.0), rel=0.01)


@pytest.mark.parametrize("algorithm", ["delayed_sgd", {"rules": [EIGHT_BITS]}], ids=["delayed_sgd", "8 bits"])
def test_what_no_rank_has_used_stays_as_it_is(algorithm):
    """Weight decay would move it, as a zero gradient is one; what another rank has used it moves."""

    def rank(group):
        model = torch.nn.ParameterDict({name: torch.ones(1) for name in ("used", "by_one", "never")})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
        with attach(model, optimizer, {"algorithm": algorithm}, process_group=group):
            for _ in range(3):
                optimizer.zero_grad()
                loss = model["used"] + model["by_one"] if group.rank() == 1 else model["used"]
                loss.sum().backward()
                optimizer.step()
            before = model["by_one"].item()
        return before - model["by_one"].item(), model["never"].item()

    for moved, never in simulate(rank, 3):
        assert moved == pytest.approx(0.1 / 3 + 0.05 * 0.85, rel=0.1)
        assert never == 1.0


USED = {
    "by one": lambda rank, step: rank == 1,
    "in turn": lambda rank, step: rank == step % 3,
    "once": lambda rank, step: rank == 1 and step == 2,
    "later": lambda rank, step: rank == 0 and step > 0,
    "by some": lambda rank, step: rank != step % 3 and step != 3,
}


@pytest.mark.parametrize("used", list(USED))
@pytest.mark.parametrize(
    "algorithm",
    ["delayed_sgd", {"name": "delayed_sgd", "delay": 2}, {"rules": [EIGHT_BITS]}],
    ids=["1 step", "2 steps", "8 bits"],
)
def test_replicas_agree_on_what_some_ranks_use(algorithm, used):
    """Where there is a zero gradient weight decay moves a parameter, and where there is none it does not."""

    def rank(group):
        model = torch.nn.ParameterDict({name: torch.ones(1) for name in ("all", "some")})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5, momentum=0.9)
        seen = []
        with attach(model, optimizer, {"algorithm": algorithm}, process_group=group):
            for step in range(6):
                optimizer.zero_grad()
                some = model["some"] if USED[used](group.rank(), step) else 0.0
                (model["all"] + some).sum().backward()
                optimizer.step()
                seen.append(model["some"].item())
        return [*seen, model["some"].item()]

    first, *others = simulate(rank, 3)
    assert others == [first, first]
    assert first[-1] != 1.0
