"""The first broadcast of a model sends what ranks hold otherwise, and nothing else."""

from __future__ import annotations

import pytest
import torch

import relaxcomm


@pytest.mark.parametrize("moved", [0.0, 1.0])
def test_what_all_hold_is_not_sent(moved):
    """As a model that each rank has loaded, whose adapters each has drawn."""

    def rank(group):
        torch.manual_seed(0)
        base, adapter = torch.nn.Linear(64, 64).requires_grad_(False), torch.nn.Linear(64, 4)
        model = torch.nn.Sequential(base, torch.nn.BatchNorm1d(64), adapter).bfloat16()
        adapter.weight.data += moved * group.rank()
        first = {name: value.clone() for name, value in model.state_dict().items()}
        with relaxcomm.attach(model, None, "bsp", process_group=group) as engine:
            sent, _ = engine.world.transport.counters.by_rule["broadcast"]
            return first, sent, model.state_dict()

    (first, sent, _), *_ = found = relaxcomm.simulate(rank, 3)
    for *_, now in found:
        torch.testing.assert_close(now, first, rtol=0, atol=0)
    assert sent < 1024 + 2 * moved * 64 * 4 * 2  # the adapter's weight to two ranks; else numbers alone
