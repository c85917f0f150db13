"""Density and bits over steps, from YAML to the bytes that are sent, on 3 ranks and several buckets."""

import math

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import config, plugin, primitives
from relaxcomm.checks.compressors_hold import loss_is_declared, messages_are_declared
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import (
    all_gather,
    chain,
    error_feedback,
    piecewise,
    quantize,
    random_k,
    server,
    top_k,
)
from tests.algorithms.test_low_precision_algorithms import layout
from tests.engine.harness import in_process
from tests.models import CASES, take_step, trainable

BEGIN, CHANGE, STEPS = 2, 3, 8  # the second value is taken in step 2 + 3
BLOCK = 16
FLAG_BYTES = 2 * 2 * 6 * 4 // 3  # which of six tensors have a gradient, all-reduced in float32
ROUNDING = ("nearest", "stochastic")


def scheduled(name, first, then):
    """Arguments of YAML: one number, then another."""
    return {name: {"piecewise": {"values": [first, then], "steps": [CHANGE]}}}


def yaml_of(compressor):
    """The first steps in full, so that the clock of the schedule is seen to begin with the rule."""
    first = {"payload": "gradients", "exchange": "all_reduce", "active": [0, BEGIN]}
    rest = {
        "payload": "gradients",
        "exchange": "all_gather",
        "compressor": compressor,
        "active": [BEGIN, None],
    }
    return {"algorithm": {"rules": [first, rest]}}


def sent(world, values):
    """The bytes that each step has sent."""
    task = CASES["toy"]
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    counts, before = [], 0
    with world.attach(model, optimizer, values) as engine:
        for step in range(STEPS):
            take_step(task.local_loss(model, step, world.rank), optimizer)
            counts.append(engine.statistics["bytes_sent"] - before)
            before = engine.statistics["bytes_sent"]
    return counts


def bucket_sizes(values):
    """The entries of each bucket."""
    sizes = {name: parameter.numel() for name, parameter in CASES["toy"].model().named_parameters()}
    return [sum(sizes[name] for name in names) for names in in_process(layout, 3, values)[0]]


def quantised_bytes(numel, bits):
    """Codes, with the digits of 8, 4, 2 and 1 bits packed apart, and two scales of float64 a block."""
    codes = sum(math.ceil(numel * width / 8) for width in (1, 2, 4, 8) if bits & width)
    return codes + math.ceil(numel / BLOCK) * 16


@pytest.mark.parametrize(("first", "then"), [(8, 3), (2, 7)])
def test_bits_follow_their_schedule(first, then):
    values = yaml_of(
        {"error_feedback": {"quantize": {**scheduled("bits", first, then), "block_size": BLOCK}}}
    )
    sizes = bucket_sizes(values)
    assert len(sizes) > 1
    for counts in in_process(sent, 3, values):
        by_step = [first] * CHANGE + [then] * (STEPS - BEGIN - CHANGE)
        expected = [2 * sum(quantised_bytes(numel, bits) for numel in sizes) for bits in by_step]
        assert [count - FLAG_BYTES for count in counts[BEGIN:]] == expected


def test_density_follows_its_schedule():
    values = yaml_of({"error_feedback": {"top_k": {**scheduled("density", 0.5, 0.1), "scope": "bucket"}}})
    sizes = bucket_sizes(values)
    for counts in in_process(sent, 3, values):
        by_step = [0.5] * CHANGE + [0.1] * (STEPS - BEGIN - CHANGE)
        expected = [2 * sum(12 * max(1, int(density * numel)) + 4 for numel in sizes) for density in by_step]
        assert [count - FLAG_BYTES for count in counts[BEGIN:]] == expected


@pytest.mark.parametrize("rounding", ROUNDING)
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_step_codes_as_the_bits_of_that_step_would(rounding, symmetric):
    more = {"block_size": BLOCK, "rounding": rounding, "symmetric": symmetric}
    coder = quantize(bits=piecewise(values=(8, 2, 5), steps=(1, 4)), **more)
    tensor = torch.randn(101)
    for step, bits in enumerate((8, 2, 2, 2, 5, 5)):
        sent, result = coded(coder, tensor, step)
        expected = coded(quantize(bits=bits, **more), tensor, step)
        assert torch.equal(sent, expected[0])
        assert torch.equal(result, expected[1])
    assert coder.message_bytes(101, 4) == quantize(bits=8, **more).message_bytes(101, 4)
    assert coder.facts.follows_clock
    assert not quantize(bits=8, **more).facts.follows_clock


def coded(coder, tensor, step):
    """The message's bytes, and what they decode to."""
    cx = plugin.Context(step=step, start=0, membership=Membership(0, 3), learning_rate=lambda bucket: 0.1)
    coding = coder.encode_decode(cx, tensor, {}, keep_sent=False)
    message = next(coding)
    with pytest.raises(StopIteration) as stop:
        coding.send([(1.0, message.unpack(message.pack()))])
    return message.pack(), stop.value.value[0]


@pytest.mark.parametrize(
    "coder",
    [
        quantize(bits=piecewise(values=(8, 2), steps=(3,)), block_size=BLOCK),
        quantize(bits=piecewise(values=(2, 8), steps=(3,)), block_size=BLOCK, rounding="stochastic"),
        top_k(density=piecewise(values=(0.5, 0.1), steps=(3,))),
        random_k(density=piecewise(values=(0.5, 0.1), steps=(3,))),
    ],
    ids=repr,
)
def test_facts_hold_in_every_step(coder):
    """The bound on what is lost is that of the coarsest step, the bytes are those of the finest."""
    messages_are_declared(coder)
    loss_is_declared(coder)


def test_a_chain_reads_the_bits_of_its_step():
    coder = chain(compressors=(top_k(density=0.5), quantize(bits=piecewise(values=(8, 1), steps=(3,)))))
    tensor = torch.linspace(-1, 1, 64)
    levels = [len(np.unique(coded(coder, tensor, step)[1].numpy())) for step in (0, 3)]
    assert levels[0] > 30
    assert levels[1] == 3  # zero, and two levels


@pytest.mark.parametrize("value", [0, 9, 4.5, -1, float("nan"), float("inf")])
def test_every_number_of_bits_is_checked(value):
    for values in ((8, value), (value, 8)):
        with pytest.raises(relaxcomm.ConfigError, match="whole numbers, 1 to 8"):
            quantize(bits=piecewise(values=values, steps=(3,)))
    with pytest.raises(relaxcomm.ConfigError, match="whole numbers, 1 to 8"):
        config.load(yaml_of({"quantize": scheduled("bits", 8, value)}))


def test_one_bit_has_no_levels_around_0_at_any_time():
    with pytest.raises(relaxcomm.ConfigError, match="one bit has no levels"):
        quantize(bits=piecewise(values=(8, 1), steps=(3,)), symmetric=True)


def test_messages_of_other_clocks_cannot_be_read():
    late = {"payload": primitives.deltas(), "exchange": server(staleness=1)}
    changing = error_feedback(compressor=quantize(bits=piecewise(values=(8, 4), steps=(3,))))
    with pytest.raises(relaxcomm.CompositionError, match="density or bits that stay"):
        relaxcomm.Rule(compressor=changing, **late)
    relaxcomm.Rule(compressor=error_feedback(compressor=quantize(bits=8)), **late)
    relaxcomm.Rule(payload=primitives.gradients(), exchange=all_gather(), compressor=changing)
