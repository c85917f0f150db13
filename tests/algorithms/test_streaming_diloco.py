"""Streaming DiLoCo against its reference; how a model is cut; what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import relaxcomm.config
from relaxcomm import CompositionError, Rule
from relaxcomm.composition.fragments import resolve
from relaxcomm.primitives import all_reduce, gradients
from tests import references
from tests.algorithms.test_low_precision_algorithms import whole_levels
from tests.engine.harness import (
    assert_histories_agree,
    in_process,
    simulated_workers,
    train,
)
from tests.models import CASES, take_step, trainable

STEPS = 40
# The toy model's tensors have 66, 11, 99, 9, 36 and 4 entries.
THIRDS = [slice(0, 77), slice(77, 176), slice(176, 225)]


def settings(steps=9, fragments=3, delay=2, **more):
    made = {"name": "streaming_diloco", "steps": steps, "fragments": fragments, "delay": delay, **more}
    return {"algorithm": made, "bucket_bytes": 512}


@pytest.mark.every_other("delay", "merge")
@pytest.mark.parametrize("delay", [0, 2, 9])
@pytest.mark.parametrize("merge", [0.0, 0.5])
def test_streaming_diloco_equals_its_reference(delay, merge):
    """With a delay of the whole period, fragments are under way at the same time."""
    config = settings(delay=delay, merge=merge, lr=0.6, momentum=0.8)
    expected = references.streaming_diloco(
        simulated_workers(3, "adamw"), STEPS, 9, THIRDS, delay, 0.6, 0.8, merge
    )
    assert_histories_agree(in_process(train, 3, config, STEPS, "adamw"), expected)


def test_one_fragment_without_delay_is_diloco():
    config = settings(steps=7, fragments=1, delay=0, merge=0.0, lr=0.7)
    expected = references.diloco(simulated_workers(3), STEPS, 7, 0.7, 0.9)
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)


def mean_in_four_bits(deltas):
    """Each third of a fragment's bucket is a block that one worker averages and codes again.

    A bucket holds a fragment's tensors in the order in which their gradients come: the last one first.
    """
    inner_ends = {77: [66], 99: [], 49: [9, 45]}[deltas.shape[1]]
    order = np.concatenate(np.split(np.arange(deltas.shape[1]), inner_ends)[::-1])
    size = -(-deltas.shape[1] // 3)
    thirds = [deltas[:, order[start : start + size]] for start in range(0, deltas.shape[1], size)]
    means = np.empty(deltas.shape[1])
    means[order] = np.concatenate(
        [whole_levels(np.mean([whole_levels(row, bits=4) for row in one], axis=0), bits=4) for one in thirds]
    )
    return means


def test_four_bits():
    compressor = {"quantize": {"bits": 4, "block_size": 1024}}
    config = {**settings(compressor=compressor), "bucket_bytes": 1 << 20}
    expected = references.streaming_diloco(
        simulated_workers(3), STEPS, 9, THIRDS, 2, 0.4, 0.9, 0.5, mean_in_four_bits
    )
    with pytest.warns(relaxcomm.CompositionWarning, match="for good"):
        found = in_process(train, 3, config, STEPS)
    assert_histories_agree(found, expected)


def sending(world, config, steps):
    """Bytes sent in each step."""
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, config) as engine:
        sent = [engine.statistics["bytes_sent"]]
        for step in range(steps):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            sent.append(engine.statistics["bytes_sent"])
    return np.diff(sent)


def test_fragments_take_turns():
    """What is sent at once is a fragment; all together are the model."""
    sent = np.mean(in_process(sending, 2, settings(), 27), axis=0)
    fired = {step for step in range(27) if sent[step]}
    assert fired == {8, 17, 26, 11, 20, 14, 23}
    assert [sent[step] for step in (8, 11, 14)] == [8 * 77, 8 * 99, 8 * 49]


def with_buffers(world, steps):
    """BatchNorm's statistics of ranks that see different data, with fragments under way all the time."""
    case = CASES["convnet"]
    model, optimizer = trainable("convnet", "plain")
    config = {"algorithm": settings(steps=6, fragments=3, delay=6)["algorithm"]}
    with world.attach(model, optimizer, config) as engine:
        for step in range(steps):
            inputs, targets = case.data(step, world.rank)
            take_step(case.loss(model(inputs + world.rank), targets), optimizer)
        found = model[1].running_mean.clone().numpy()
        engine.close(average=False)
    return found


def test_buffers_stay_together_while_fragments_overlap():
    short, long = (np.stack(in_process(with_buffers, 3, steps)) for steps in (20, 120))
    assert np.ptp(long, axis=0).max() < 3 * np.ptp(short, axis=0).max() + 0.5


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([66, 11, 99, 9, 36, 4], 3, ["ab", "c", "def"]),
        ([66, 11, 99, 9, 36, 4], 6, ["a", "b", "c", "d", "e", "f"]),
        ([1000, 1, 1], 3, ["a", "b", "c"]),
        ([1, 1, 1000], 2, ["ab", "c"]),
        ([0, 0, 0], 2, ["a", "bc"]),
        ([5], 1, ["a"]),
    ],
)
def test_how_a_model_is_cut(sizes, count, expected):
    named = dict(zip("abcdef", sizes, strict=False))
    assert ["".join(resolve([f"{k}/{count}"], named)) for k in range(1, count + 1)] == expected


def test_names_with_brackets_are_themselves():
    (pattern,) = resolve(["1/1"], {"blocks[0]": 3})
    assert Rule(payload=gradients(), exchange=all_reduce(), select=(pattern,)).covers("blocks[0]")


def test_fragments_that_cannot_be_are_refused():
    for one in ("0/3", "4/3", "0/0"):
        with pytest.raises(CompositionError, match="the k-th of n"):
            Rule(payload=gradients(), exchange=all_reduce(), select=(one,))
    with pytest.raises(CompositionError, match="at most 4 fragments"):
        relaxcomm.config.load(settings(steps=4, fragments=5))
    with pytest.raises(CompositionError, match="cannot be cut into 7 fragments; use at most 6"):
        in_process(train, 2, settings(fragments=7), 1)
    with pytest.raises(CompositionError, match="delay"):
        relaxcomm.config.load(settings(steps=4, delay=5))
