"""Delayed SGD against its reference, and that replicas never part."""

from __future__ import annotations

import numpy as np
import pytest

from tests import references
from tests.engine.harness import assert_histories_agree, in_process, simulated_workers, train

STEPS = 30


@pytest.mark.every_other("size", "delay", "optimizer")
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("delay", [1, 3])
@pytest.mark.parametrize("size", [2, 3])
def test_delayed_sgd_equals_its_reference(size, delay, optimizer):
    expected = references.delayed_gradients(simulated_workers(size, optimizer), STEPS, delay)
    config = {"algorithm": {"name": "delayed_sgd", "delay": delay}}
    found = in_process(train, size, config, STEPS, optimizer)
    assert_histories_agree(found, expected)
    for history in found:
        np.testing.assert_array_equal(history, found[0])


def test_a_delay_longer_than_the_run_trains_all_the_same():
    expected = references.delayed_gradients(simulated_workers(3), 4, 7)
    config = {"algorithm": {"name": "delayed_sgd", "delay": 7}}
    assert_histories_agree(in_process(train, 3, config, 4), expected)
