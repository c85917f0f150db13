"""A layer that is frozen in mid training stands still, and learns again when it is unfrozen."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from relaxcomm.step.frozen_since import at_rest
from relaxcomm.tensors.buckets import Bucket, Item
from tests.engine.harness import in_process, on_gloo

ALGORITHMS = {
    "diloco": {"name": "diloco", "steps": 2},
    "slowmo": {"name": "slowmo", "steps": 2, "momentum": 0.8},
    "streaming": {"name": "streaming_diloco", "steps": 4, "fragments": 2, "delay": 1, "merge": 0.0},
}


def freezing(world, algorithm, freezes_alone: bool = False):
    """Both layers after each of 20 steps; the first one is frozen from step 5 to 16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator, seen = torch.Generator().manual_seed(world.rank), []
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        for step in range(20):
            model[0].requires_grad_((freezes_alone and world.rank > 0) or not 5 <= step < 16)
            inputs = torch.randn(8, 6, generator=generator, dtype=torch.float64)
            (model(inputs) - inputs[:, :4]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append([layer.weight.detach().clone() for layer in (model[0], model[2])])
    return seen


def check(seen):
    first, second = zip(*seen, strict=True)
    assert all(not torch.equal(a, b) for a, b in pairwise(second))
    for step in range(10, 16):  # rounds still bring what came before, late ones too
        assert torch.equal(first[step], first[10]), step
    assert not torch.equal(first[3], first[4])
    assert not torch.equal(first[17], first[15])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_momentum_moves_no_frozen_layer(name):
    for seen in in_process(freezing, 3, ALGORITHMS[name]):
        check(seen)


@pytest.mark.ranks
def test_momentum_moves_no_frozen_layer_on_gloo():
    for seen in on_gloo(freezing, 3, ALGORITHMS["diloco"]):
        check(seen)


def test_a_layer_that_one_rank_alone_has_frozen_stays_equal():
    found = [seen[-1] for seen in in_process(freezing, 3, ALGORITHMS["diloco"], True)]
    for first, second in found[1:]:
        assert torch.equal(first, found[0][0])
        assert torch.equal(second, found[0][1])


def test_nothing_rests_where_a_rank_has_no_part_of_a_parameter():
    items = [Item("here", torch.ones(3)), Item("elsewhere", torch.ones(0))]
    bucket = Bucket(0, items)  # frozen
    ((place, rests),) = at_rest(bucket, torch.zeros(3), torch.ones(3))
    assert (place, bool(rests)) == (0, True)


def alternating(world, algorithm, freezes: bool):
    """Two halves that take turns; what has been moved of all that their gradients would."""
    halves = nn.ParameterList([nn.Parameter(torch.zeros(20)) for _ in range(2)])
    optimizer = torch.optim.SGD(halves.parameters(), lr=1.0)
    slope = torch.linspace(0.5, 1.5, 20)
    with world.attach(halves, optimizer, {"algorithm": algorithm}):
        for step in range(100):
            for index, half in enumerate(halves):
                half.requires_grad_(not freezes or index == step % 2)
            optimizer.zero_grad()
            (halves[step % 2] * slope).sum().backward()
            optimizer.step()
    return [float(-half.detach().sum() / (50 * slope.sum())) for half in halves]


@pytest.mark.parametrize("name", ["topk_sgd", "gravac", "randomk_sgd"])
def test_residuals_of_frozen_parameters_wait_for_them(name):
    """Half of what was left out of earlier messages was sent while nobody took it."""
    algorithm = {"name": name} if name == "gravac" else {"name": name, "density": 0.2}
    (found, *_), (used, *_) = (in_process(alternating, 3, algorithm, freezes) for freezes in (True, False))
    for one, other in zip(found, used, strict=True):
        assert one > other - 0.07
        assert one > 0.85
