"""What is measured of replicas now and then, and how long it counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from relaxcomm.step import replica_norms
from tests.engine.harness import World, in_process, values

TOPK = {"name": "topk_sgd", "density": 0.2}


def normed(world: World, algorithm):
    """The parameters of a model with statistics, which is averaged, and what is measured then."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": algorithm, "metrics": {"port": None}}) as engine:
        for _ in range(2):
            optimizer.zero_grad()
            batch = 100 * torch.randn(4, 3, generator=draw, dtype=torch.float64)
            model(batch).square().mean().backward()
            optimizer.step()
        with engine.averaged():
            measured = dict(engine.snapshot().values)
        return values(model), float(measured["replica_distance"]), float(measured["parameter_norm"])


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 50}])
def test_a_distance_is_that_of_parameters_whatever_buffers_hold(algorithm):
    found = in_process(normed, 3, algorithm)
    mean = np.mean([parameters for parameters, *_ in found], axis=0)
    for parameters, distance, norm in found:
        assert distance == pytest.approx(np.linalg.norm(parameters - mean), abs=1e-9)
        assert norm == pytest.approx(np.linalg.norm(parameters))


def switching(world: World, first, second):
    """What is shown before a switch, if there is one, after it, and after a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shown = []
    with world.attach(model, optimizer, {"algorithm": first, "metrics": {"port": None}}) as engine:
        for step in range(5):
            if step == 4:
                shown.append(set(engine.snapshot().values))
                if second is not None:
                    engine.switch(second, residuals="drop")
                shown.append(set(engine.snapshot().values))
            engine.observe(loss=1.0)
            optimizer.zero_grad()
            model(torch.randn(4, 3) + world.rank).square().mean().backward()
            optimizer.step()
        return [*shown, set(engine.snapshot().values)]


@pytest.mark.filterwarnings("ignore:.* drops what was left to send")
@pytest.mark.parametrize(
    ("first", "second", "before", "after"),
    [
        ({"name": "local_sgd", "steps": 2}, "bsp", {"replica_distance", "parameter_norm"}, set()),
        (TOPK, "bsp", {"residual_norm"}, set()),
        ("bsp", TOPK, set(), {"residual_norm"}),
    ],
)
def test_what_was_measured_of_an_algorithm_goes_with_it(monkeypatch, first, second, before, after):
    monkeypatch.setattr(replica_norms, "_SHARE", np.inf)  # all is measured that can be
    for shown in in_process(switching, 3, first, second):
        assert shown == [before | {"loss"}, {"loss"}, after | {"loss"}]


@pytest.mark.parametrize(("algorithm", "is_taken"), [("decoupled_diloco", False), ("diloco", True)])
def test_what_an_outer_moves_is_no_distance_between_replicas(algorithm, is_taken):
    """Where servers apply it they give back no mean."""
    for *_, shown in in_process(switching, 2, {"name": algorithm, "steps": 2}, None):
        assert ("replica_distance" in shown) == is_taken
