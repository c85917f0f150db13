"""Adam with a second moment that is learnt in the exchanges of the first steps."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import Algorithm, CompositionError, Rule, attach, simulate, trajectory
from relaxcomm.primitives import all_reduce, every, frozen_adam, gradients, momentum


@pytest.mark.parametrize("num_skipped", [0, 10, 20])
def test_steps_that_a_scaler_skips_while_it_is_learnt_change_no_later_one(num_skipped):
    """With one gradient all the time, each step of Adam is the learning rate."""

    def rank(group):
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", growth_interval=1000)
        config, moved = {"algorithm": {"name": "qadam", "warmup_steps": 22}}, []
        with attach(model, optimizer, config, scaler=scaler, process_group=group):
            for step in range(num_skipped + 40):
                before = model.weight.item()
                optimizer.zero_grad()
                loss = model(torch.ones(1, 1)).sum()
                scaler.scale(loss * float("inf") if step < num_skipped else loss).backward()
                scaler.step(optimizer)
                scaler.update()
                moved.append(before - model.weight.item())
        return moved[num_skipped:]

    for moved in simulate(rank, 3):
        assert moved == pytest.approx([0.01] * 40, rel=1e-3)


def test_a_warm_up_without_an_exchange_is_refused():
    """The first of every four steps' exchanges comes in the fourth step."""

    def rule(warmup_steps):
        outer = frozen_adam(warmup_steps=warmup_steps)
        return Rule(trigger=every(steps=4), payload=momentum(), exchange=all_reduce(), outer=outer)

    with pytest.raises(CompositionError, match=r"first 3 steps.*leaves 4 steps.*warmup_steps at least 4"):
        rule(3)
    rule(4)


def test_a_rule_that_begins_later_learns_in_its_own_first_steps():
    """With one gradient all the time, each step of Adam is the learning rate, which is 1."""
    first = Rule(payload=gradients(), exchange=all_reduce(), active=(0, 5))
    adam = frozen_adam(warmup_steps=4)
    later = Rule(payload=momentum(), exchange=all_reduce(), outer=adam, active=(5, None))
    replicas = trajectory(Algorithm((first, later)), [[3.0, 3.0]] * 15)
    assert replicas[:, 0].diff().tolist() == pytest.approx([3.0] * 4 + [1.0] * 10)
