"""What is kept for each rank's part of a bucket is cut anew for other ranks, and nothing of it is lost."""

from __future__ import annotations

import pytest
import torch

import relaxcomm
from relaxcomm.engine.membership import bucket_parts
from relaxcomm.engine.membership.survival import rebound
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.step.world import World

FEEDBACK = {"error_feedback": {"cast": {"dtype": "bfloat16"}}}
RULE = {
    "payload": "gradients",
    "compressor": FEEDBACK,
    "exchange": {"scatter_gather": {"server_feedback": True}},
}


def trained(group):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 40), torch.nn.Linear(40, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"algorithm": {"rules": [RULE]}, "bucket_bytes": 600}
    with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
        torch.manual_seed(1 + group.rank())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 5)).square().mean().backward()
            optimizer.step()
        engine._session.step.release = lambda: None  # what is kept is looked at behind the end
        return engine._session.bound


def whole(bounds, name_of):
    """A residual put together from all ranks' parts, by bucket."""
    return [
        torch.cat([bound.state.slots[0, unit]["compressor"][name_of(bound, part)] for bound, part in bounds])
        for unit in range(len(bounds[0][0].plan.buckets))
    ]


def of_rank(bound):
    """What a rank has left to send of its own gradients."""
    size = bound.world.size
    return whole([(bound, part) for part in range(size)], lambda bound, part: f"{part}.residual")


def of_means(bounds):
    """What all have left to send of means."""
    return whole([(bound, bound.world.size) for bound in bounds], lambda bound, part: f"{part}.residual")


@pytest.mark.parametrize("size", [2, 4])
def test_residuals_of_parts_are_cut_anew(size):
    olds = relaxcomm.simulate(trained, 3)
    assert len(olds[0].plan.buckets) > 1
    assert all(rest.abs().sum() for rest in [*of_rank(olds[0]), *of_means(olds)])
    held = [bucket_parts.rests(one) for one in olds]

    def go_on(group):
        transport, rank = group.transport(), group.rank()
        world = World(transport, Statistics(transport.counters))
        new = rebound(olds[min(rank, 2)], world)
        bucket_parts.cut_anew(new, olds[rank] if rank < 3 else None, held)
        return new

    news = relaxcomm.simulate(go_on, size)
    for before, after in zip(of_means(olds), of_means(news), strict=True):
        assert torch.equal(before, after)
    for old, new in zip(olds, news, strict=False):
        for before, after in zip(of_rank(old), of_rank(new), strict=True):
            assert torch.allclose(before * max(1, size / 3), after)  # the mean over the ranks stays
    for new in news[3:]:
        assert all(not rest.any() for rest in of_rank(new))


def test_what_a_lost_rank_had_left_of_its_mean_is_gone():
    olds = relaxcomm.simulate(trained, 3)
    held = [bucket_parts.rests(olds[0]), None, bucket_parts.rests(olds[2])]

    def go_on(group):
        transport = group.transport()
        old = olds[0 if group.rank() == 0 else 2]
        new = rebound(old, World(transport, Statistics(transport.counters)))
        bucket_parts.cut_anew(new, old, held)
        return new

    news = relaxcomm.simulate(go_on, 2)
    left = [torch.cat([one[place]["residual"] for place in sorted(one)]).abs().sum() for one in held if one]
    assert sum(rest.abs().sum() for rest in of_means(news)).item() == pytest.approx(sum(left).item())
