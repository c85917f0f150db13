"""Adam with a second moment that is learnt in the first exchanges."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import attach, simulate


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
