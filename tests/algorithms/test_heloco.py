"""HeLoCo against its reference, on a clock on which workers differ in speed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relaxcomm.plugin import Bucket, Context, Item, Membership
from relaxcomm.primitives import heloco
from relaxcomm.tensors.shards import shard_sizes
from tests import references
from tests.algorithms.test_decoupled_diloco import timed
from tests.algorithms.test_sparse_algorithms import bucket_places
from tests.engine.harness import assert_resumes, in_process, on_gloo, simulated_workers, train
from tests.models import CASES

STEPS = 24
SECONDS = (1.0, 1.31, 2.93, 0.77, 1.47)  # no two workers push at the same time
GIVEN = {"lr": 0.6, "momentum": 0.8}


def settings(**more):
    return {"algorithm": {"name": "heloco", "steps": 3, **GIVEN, **more}, "bucket_bytes": 1200}


def blocks_of(config, size):
    """Places of the entries that are corrected together: a tensor's, in one rank's part of a bucket."""
    buckets = in_process(bucket_places, size, {**config, "algorithm": "bsp"})[0]
    ends = np.cumsum([p.numel() for p in CASES["toy"].model().parameters()])
    blocks = []
    for bucket in buckets:
        for part in np.split(bucket, np.cumsum(shard_sizes(len(bucket), size))[:-1]):
            tensor = np.searchsorted(ends, part, side="right")
            blocks += [part[tensor == one] for one in np.unique(tensor)]
    return len(buckets), blocks


@pytest.mark.parametrize("size", [3, 5])
def test_it_equals_its_reference_on_a_clock(size):
    """Every case of the correction is among what is compared."""
    num_buckets, blocks = blocks_of(settings(), size)
    assert num_buckets == 2
    found = in_process(timed, size, settings(), STEPS, SECONDS)
    histories, end, cases = references.heloco(
        simulated_workers(size, "plain"), STEPS, SECONDS, 3, blocks, *GIVEN.values(), 1 / size
    )
    assert cases == {"aligned", "opposed", "weak"}
    for rank, (history, ended, averaged, last, _) in enumerate(found):
        np.testing.assert_allclose(history, histories[rank], rtol=1e-9, atol=1e-9, err_msg=f"rank {rank}")
        np.testing.assert_allclose(averaged, end, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(last, end, rtol=1e-9, atol=1e-9)
        # Nobody has waited for anybody.
        np.testing.assert_allclose(ended, SECONDS[rank] * np.arange(1, STEPS + 1), rtol=1e-12)


@pytest.mark.ranks
def test_on_gloo():
    """In which order pushes come is not known; all end with one model, which is better than the first."""
    ends = [history[-1] for history in on_gloo(train, 3, settings(), STEPS, "plain")]
    for end in ends:
        np.testing.assert_array_equal(end, ends[0])
    workers = simulated_workers(1, "plain")
    losses = []
    for parameters in (workers.parameters, ends[0]):
        workers.parameters = parameters
        losses.append(
            np.mean([CASES["toy"].local_loss(workers.models[0], 0, rank).item() for rank in range(3)])
        )
    assert losses[1] < losses[0]


def test_a_run_that_was_saved_goes_on_bit_for_bit():
    assert_resumes(settings())


def corrected(delta, **given):
    """What a delta becomes beside a momentum of (1, 0), and beside none."""
    bucket = Bucket(0, [Item("weight", torch.zeros(2, dtype=torch.float64))])
    outer = heloco(lr=1.0, momentum=0.0, weight=1.0, **given)
    cx = Context(
        step=0, start=0, membership=Membership(rank=0, world_size=1), learning_rate=lambda bucket: 0.1
    )
    moved = []
    for momentum in ([1.0, 0.0], [0.0, 0.0]):
        state = {"momentum": torch.tensor(momentum, dtype=torch.float64)}
        result = torch.tensor(delta, dtype=torch.float64)
        moved.append(-outer.apply(cx, bucket, state, result, torch.zeros(2, dtype=torch.float64)))
        assert torch.equal(result, torch.tensor(delta, dtype=torch.float64))
    return moved


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ([1.0, 1.0], [1.0, 1.0]),  # along the momentum
        ([-4.0, 0.0], [-4.0 + 0.5 * 4 / 7 * 4, 0.0]),  # against it, in part
        ([0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_what_is_against_the_momentum_is_taken_back_in_part(delta, expected):
    beside, alone = corrected(delta)
    torch.testing.assert_close(beside, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)
    assert alone.tolist() == delta
    most, _ = corrected([-4.0, 0.0], shrink=50.0)
    assert most.tolist() == [-2.0, 0.0]


def test_what_is_across_the_momentum_is_turned_towards_it_and_stays_as_long():
    beside, alone = corrected([0.3, 4.0])
    assert beside.norm().item() == pytest.approx(alone.norm().item(), rel=1e-12)
    assert beside[0] / beside[1] > 0.3 / 4.0
    untouched, _ = corrected([0.3, 4.0], turn=0.0)
    torch.testing.assert_close(untouched, alone)
    turned, _ = corrected([0.3, 4.0], turn=1000.0)  # no further than the momentum
    torch.testing.assert_close(turned, torch.tensor([alone.norm(), 0.0], dtype=torch.float64))


def test_a_delta_counts_for_less_among_more_workers():
    """Of the first to push, rank 3 of 4: a quarter of what it has moved, where its weight is not given."""
    start = simulated_workers(1).parameters[0]
    quarter, whole = (
        in_process(timed, 4, settings(steps=1, momentum=0.0, lr=1.0, **given), 1, SECONDS)[3][0][0] - start
        for given in ({}, {"weight": 1.0})
    )
    np.testing.assert_allclose(quarter, 0.25 * whole, rtol=1e-9, atol=1e-12)
