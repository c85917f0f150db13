"""Gossip of differences to public copies, of parameters that are complex."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm import attach, simulate


def mixed(group, algorithm):
    """What is left of each rank's own number after two exchanges."""
    weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    config = {"algorithm": algorithm, "topology": "ring"}
    model = nn.ParameterList([weight])
    with attach(model, optimizer, config, process_group=group) as engine:
        for step in range(2):
            optimizer.zero_grad()
            own = group.rank() if step == 0 else 0
            (-own * (weight.real + 2 * weight.imag).sum()).backward()
            optimizer.step()
        engine.close(average=False)
    return weight.detach()


@pytest.mark.parametrize(
    "algorithm", [{"name": "choco_sgd", "gamma": 1.0}, {"name": "dcd_psgd"}], ids=lambda one: one["name"]
)
def test_both_parts_of_complex_parameters_are_mixed(algorithm):
    ranks = simulate(lambda group: mixed(group, {**algorithm, "compressor": "identity"}), 4)
    assert len({one.real[0].item() for one in ranks}) > 1
    for one in ranks:
        torch.testing.assert_close(one.imag, 2 * one.real)
    assert max(one.real[0].item() for one in ranks) < 2.5
