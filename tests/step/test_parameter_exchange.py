"""A payload that measures knows of the whole model before it reads any bucket, and of this worker alone."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import relaxcomm
from relaxcomm import Algorithm, Rule, simulate
from relaxcomm.errors import PluginError
from relaxcomm.plugin import frozen
from relaxcomm.primitives import all_reduce, deltas, every, parameters
from tests.ranks import run_ranks

RANKS, STEPS, PERIOD = 3, 6, 2
SMALL, LARGE = 64, 1 << 20  # bytes of a bucket: two buckets, and one
SIZES = (20, 11)


@frozen
class weighted_deltas(deltas):
    """EDiT's: a mean of deltas weighted by `softmax(-||d_n||)`, with norms of the whole model."""

    facts = replace(deltas().facts, extra_entries=1)

    def measure(self, cx, bucket, state):
        return super().read(cx, bucket, state, bucket.empty()).double().square().sum().view(1)

    def read(self, cx, bucket, state, out):
        moved = super().read(cx, bucket, state, bucket.empty())
        weight = (-cx.measured.sqrt()).exp().to(moved.dtype)
        return torch.cat([moved * weight, weight])

    def finalize(self, cx, bucket, state, result):
        return result[:-1] / result[-1]


def moves(rank):
    """What a worker's optimizer moves the model by in each step: the later the rank, the further."""
    return np.random.default_rng(rank).normal(size=(STEPS, sum(SIZES))) * (0.05 + rank / 10)


def train(group, algorithm, bucket_bytes=SMALL):
    """The parameters after every step."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in SIZES])
    optimizer, history = torch.optim.SGD(model.parameters(), lr=1.0), []
    config = {"algorithm": algorithm, "bucket_bytes": bucket_bytes}
    rank = dist.get_rank() if group is None else group.rank()
    with relaxcomm.attach(model, optimizer, config, process_group=group):
        for one in torch.tensor(moves(rank), dtype=torch.float32):
            optimizer.zero_grad()
            sum(-p @ part for p, part in zip(model, one.split(SIZES), strict=True)).backward()
            optimizer.step()
            history.append(nn.utils.parameters_to_vector(model.parameters()).detach().double().numpy())
    return np.stack(history)


def by_hand():
    """The same in float64, of the paper's equations."""
    anchor, found = np.zeros(sum(SIZES)), []
    at = np.tile(anchor, (RANKS, 1))
    for step, taken in enumerate(np.stack([moves(rank) for rank in range(RANKS)], axis=1)):
        at = at + taken
        if (step + 1) % PERIOD == 0:
            weights = np.exp(-np.linalg.norm(at - anchor, axis=1))
            anchor = anchor + weights @ (at - anchor) / weights.sum()
            at = np.tile(anchor, (RANKS, 1))
        found.append(at)
    return np.stack(found, axis=1)


def rule(**parts):
    return Rule(
        **{"trigger": every(steps=PERIOD), "payload": weighted_deltas(), "exchange": all_reduce(), **parts}
    )


def alone(**parts):
    return Algorithm((rule(**parts),), name="mine")


@pytest.mark.parametrize("bucket_bytes", [SMALL, LARGE])
def test_workers_are_weighted_by_norms_of_the_whole_model(bucket_bytes):
    found = simulate(lambda group: train(group, alone(), bucket_bytes), RANKS)
    np.testing.assert_allclose(np.stack(found), by_hand(), atol=1e-5)


def test_they_are_so_over_real_processes():
    np.testing.assert_allclose(np.stack(run_ranks(_over_gloo, RANKS)), by_hand(), atol=1e-5)


def _over_gloo(rank):
    return train(None, alone())


def test_a_late_result_is_of_what_was_measured_when_it_was_read():
    """What has gone on since then stays."""
    small, large = (
        np.stack(simulate(lambda group, size=size: train(group, alone(delay=1), size), RANKS))
        for size in (SMALL, LARGE)
    )
    at_once = by_hand()
    np.testing.assert_allclose(small, large, atol=1e-6)
    taken = np.stack([moves(rank) for rank in range(RANKS)])
    np.testing.assert_allclose(small[:, PERIOD], at_once[:, PERIOD - 1] + taken[:, PERIOD], atol=1e-5)
    assert np.abs(small[:, PERIOD - 1] - at_once[:, PERIOD - 1]).max() > 0.01


def test_each_rule_measures_what_it_covers():
    @frozen
    class measuring(parameters):
        facts = parameters.facts

        def measure(self, cx, bucket, state):
            return torch.tensor([float(bucket.numel), cx.round, cx.samples])

        def read(self, cx, bucket, state, out):
            seen.append((bucket.index, cx.measured.tolist()))
            return super().read(cx, bucket, state, out)

    seen = []
    one, other = (rule(payload=measuring(), select=name) for name in ("0", "1"))
    train_alone = partial(train, algorithm=Algorithm((one, other), name="mine"))
    simulate(train_alone, 1)
    assert [measured for _, measured in seen] == [
        [size, round, PERIOD] for round in range(STEPS // PERIOD) for size in SIZES
    ]


def test_what_it_returns_is_looked_at():
    @frozen
    class measuring(parameters):
        facts = parameters.facts

        def measure(self, cx, bucket, state):
            return bucket.copy()  # of other lengths

    with pytest.raises(PluginError, match="return a few numbers, \\[k\\] = "):
        simulate(lambda group: train(group, alone(payload=measuring())), 2)
