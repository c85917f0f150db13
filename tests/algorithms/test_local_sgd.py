"""Local SGD with a delay and with a compressor against references: 3 ranks, two buckets."""

from __future__ import annotations

import numpy as np
import pytest

import relaxcomm
from relaxcomm import Algorithm, primitives
from relaxcomm.primitives import all_reduce, cast, error_feedback, every, quantize, scatter_gather, top_k
from relaxcomm_algorithms.local_sgd import local_sgd
from tests import references
from tests.algorithms.test_low_precision_algorithms import BLOCK, BUCKET_BYTES, levels
from tests.algorithms.test_sparse_algorithms import bucket_places
from tests.engine.harness import (
    assert_histories_agree,
    in_process,
    simulated_workers,
    train,
)
from tests.models import CASES, take_step, trainable

STEPS, PERIOD = 32, 5
DELAYS = [0, 2, PERIOD]
COMPRESSOR = {"quantize": {"bits": 8, "block_size": BLOCK}}


def settings(**parameters):
    return {
        "algorithm": {"name": "local_sgd", "steps": PERIOD, **parameters},
        "bucket_bytes": BUCKET_BYTES,
    }


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("delay", DELAYS)
def test_a_late_average_keeps_what_was_learned_meanwhile(delay, optimizer):
    expected = references.late_average(simulated_workers(3, optimizer), STEPS, PERIOD, delay)
    assert_histories_agree(in_process(train, 3, settings(delay=delay), STEPS, optimizer), expected)


def coded(delay, optimizer="momentum"):
    """The reference with 8 bits: each worker averages a part of what all have moved, and codes the mean."""
    config = settings(delay=delay, compressor=COMPRESSOR)
    places = in_process(bucket_places, 3, config)[0]
    assert len(places) == 2
    expected = references.late_coded_average(
        simulated_workers(3, optimizer),
        STEPS,
        PERIOD,
        delay,
        lambda rows: references.scattered(rows, levels, levels),
        places,
    )
    return config, expected


@pytest.mark.parametrize("delay", DELAYS)
def test_eight_bits_of_what_parameters_have_moved(delay):
    config, expected = coded(delay)
    exact = references.late_average(simulated_workers(3), STEPS, PERIOD, delay)
    assert np.abs(exact[-1] - expected[-1]).max() > 1e-5, "the codes must be seen"
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)


def test_the_exchange_suits_the_compressor():
    assert local_sgd().rules[0].exchange == all_reduce()
    assert local_sgd(compressor=cast(dtype="float32")).rules[0].exchange == all_reduce()
    assert local_sgd(compressor=quantize(bits=8)).rules[0].exchange == scatter_gather()
    kept = error_feedback(compressor=top_k(density=0.1))
    assert local_sgd(compressor=kept).rules[0].exchange == primitives.all_gather()


def test_a_delay_above_the_period_is_refused():
    with pytest.raises(relaxcomm.CompositionError, match="delay 6 is longer than the 5"):
        local_sgd(steps=5, delay=6)


def counted(calls, name, called):
    def count(*args):
        calls[name] += 1
        return called(*args)

    return count


def in_between(world):
    """Calls in eight steps of which none exchanges, by name; one rank's."""
    model, optimizer = trainable("toy", "plain")
    calls = {"fires": 0, "covering": 0}
    with pytest.MonkeyPatch.context() as patch, world.attach(model, optimizer, settings(steps=100)):
        for owner, name in ((every, "fires"), (Algorithm, "covering")):
            patch.setattr(owner, name, counted(calls, name, getattr(owner, name)))
        for step in range(8):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
    return calls


def test_a_step_in_between_asks_only_whether_its_rule_fires():
    """What it costs is felt on small models: it is most of the steps."""
    assert in_process(in_between, 1) == [{"fires": 8, "covering": 0}]
