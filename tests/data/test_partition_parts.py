"""What partitions of users' own may make: all ranks refuse what would leave a rank, or samples, without."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relaxcomm import ConfigError
from relaxcomm.data import RoundPlan, make_loader
from relaxcomm.network.transport import Membership
from relaxcomm.plugin import Partition, frozen

SIZE, WORKERS = 10, 3


def made_by(made):
    @frozen
    class own(Partition):
        def parts(self, size, labels, num_parts, seed):
            return made(size, num_parts)

    return own()


def loaders(made, plan):
    """Of each rank: a function that makes it."""
    options = {"batch_size": 2, "seed": 0, "partition": made_by(made), "plan": plan}
    return [
        lambda rank=rank: make_loader(range(SIZE), membership=Membership(rank, WORKERS), **options)
        for rank in range(WORKERS)
    ]


PLANS = pytest.mark.parametrize(
    "plan", [None, RoundPlan(epochs=1, fraction=1.0, clients=WORKERS)], ids=["workers", "clients"]
)


@PLANS
@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda n, k: None, "own.* makes None; give the indices of each part's samples"),
        (lambda n, k: [[0], [1, [2]], [3]], "own.* makes .*; give the indices of each part's samples"),
        (lambda n, k: [np.arange(n)], "own.* makes 1 parts where num_parts is 3; make one for each worker"),
        (lambda n, k: [np.arange(i, n, k + 1) for i in range(k + 1)], "makes 4 parts where num_parts is 3"),
        (lambda n, k: [np.arange(n), [], []], "part 1 of 3 .* holds no sample; give it one at least"),
        (lambda n, k: [np.arange(n)] * 2 + [np.arange(n, n + 2)], "part 2 .* index 11; .* has 10 samples"),
        (lambda n, k: [np.array([-1, 0])] * k, "holds the index -1"),
        (lambda n, k: [np.arange(n) % k == i for i in range(k)], "is of bool; give the indices"),
        (lambda n, k: [np.arange(n) / 2] * k, "is of float64"),
        (lambda n, k: [np.arange(n)[None]] * k, r"has the shape \[1, 10\]"),
    ],
)
def test_all_ranks_refuse_parts_that_cannot_be_read(plan, made, says):
    for make in loaders(made, plan):
        with pytest.raises(ConfigError, match=says):
            make()


@PLANS
@pytest.mark.parametrize("kind", [list, torch.tensor, lambda part: np.array(part, dtype=np.int32)])
def test_any_whole_numbers_are_taken(plan, kind):
    dealt = loaders(lambda n, k: [kind(list(range(i, n, k))) for i in range(k)], plan)
    read = [[int(sample) for batch in make() for sample in batch] for make in dealt]
    assert all(sample % WORKERS == rank for rank, found in enumerate(read) for sample in found)
    assert all(read)
