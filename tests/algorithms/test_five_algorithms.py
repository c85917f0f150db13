"""The five algorithms against references of N simulated workers: 32 steps, 3 ranks, several buckets."""

from __future__ import annotations

import numpy as np
import pytest

from tests import references
from tests.engine.harness import assert_histories_agree, on_gloo, simulated_workers, train

STEPS = 32
ALGORITHMS = {
    "bsp": ("bsp", references.bsp, ()),
    "local_sgd": ({"name": "local_sgd", "steps": 5}, references.local_sgd, (5,)),
    "local_sgd_1": ({"name": "local_sgd", "steps": 1}, references.local_sgd, (1,)),
    "post_local_sgd": (
        {"name": "post_local_sgd", "steps": 4, "after_steps": 9},
        references.post_local_sgd,
        (4, 9),
    ),
    "slowmo": (
        {"name": "slowmo", "steps": 6, "lr": 0.9, "momentum": 0.6},
        references.slowmo,
        (6, 0.9, 0.6),
    ),
    "diloco": (
        {"name": "diloco", "steps": 7, "lr": 0.7, "momentum": 0.9},
        references.diloco,
        (7, 0.7, 0.9),
    ),
}


@pytest.mark.every_other("network", "name", "optimizer", of=4)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "groups"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_equals_its_reference_after_every_step(network, name, optimizer):
    algorithm, reference, arguments = ALGORITHMS[name]
    expected = reference(simulated_workers(3, optimizer), STEPS, *arguments)
    results = network(train, 3, {"algorithm": algorithm}, STEPS, optimizer)
    assert_histories_agree(results, expected)


@pytest.mark.ranks
@pytest.mark.every_other("name", "debug")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_equals_its_reference_under_a_schedule_and_debug_checks(name, debug):
    algorithm, reference, arguments = ALGORITHMS[name]
    expected = reference(simulated_workers(3, "groups", decay=0.93), STEPS, *arguments)
    results = on_gloo(train, 3, {"algorithm": algorithm}, STEPS, "groups", "toy", 0.93, debug=debug)
    assert_histories_agree(results, expected)


@pytest.mark.parametrize("bucket_bytes", [64, 1000, 1 << 20])
def test_bucket_size_does_not_change_the_meaning(network, bucket_bytes):
    config = {
        "algorithm": {"name": "slowmo", "steps": 3, "lr": 1.0, "momentum": 0.5},
        "bucket_bytes": bucket_bytes,
    }
    expected = references.slowmo(simulated_workers(3), 10, 3, 1.0, 0.5)
    assert_histories_agree(network(train, 3, config, 10), expected)


def test_references_differ_from_each_other():
    """If two references coincided, the tests above could not tell the algorithms apart."""
    ends = {
        name: reference(simulated_workers(3, "adamw"), STEPS, *arguments)[-1][0]
        for name, (_, reference, arguments) in ALGORITHMS.items()
    }
    names = sorted(ends)
    for position, name in enumerate(names):
        for other in names[position + 1 :]:
            assert np.abs(ends[name] - ends[other]).max() > 1e-4, (name, other)
