"""Decoupled DiLoCo: it is DiLoCo where all report in time, and what becomes of those who do not."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

import relaxcomm.config
from relaxcomm import CompositionError, ConfigError, Link, Rule, TopologyError, primitives
from relaxcomm.primitives import deltas, parameters, quorum_average
from tests import references
from tests.engine.harness import (
    World,
    assert_histories_agree,
    assert_resumes,
    in_process,
    on_gloo,
    simulated_workers,
    train,
    values,
)
from tests.models import CASES, take_step, trainable

STEPS = 40
THIRDS = [slice(0, 77), slice(77, 176), slice(176, 225)]
EVERYBODY = {"quorum": 3, "grace_seconds": 0.0, "delay": 0}


def settings(**more):
    made = {"name": "decoupled_diloco", "steps": 4, "lr": 0.6, "momentum": 0.8, **more}
    return {"algorithm": made, "bucket_bytes": 512}


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_with_everybody_it_is_diloco_bit_for_bit(optimizer):
    """Shards add up in the order of ranks, as the in-process network does; a weight of 1 changes nothing."""
    found = in_process(train, 3, settings(**EVERYBODY), STEPS, optimizer)
    expected = references.diloco(simulated_workers(3, optimizer), STEPS, 4, 0.6, 0.8)
    assert_histories_agree(found, expected)
    theirs = in_process(train, 3, settings(name="diloco"), STEPS, optimizer)
    for one, other in zip(found, theirs, strict=True):
        np.testing.assert_array_equal(
            one[:-1], other[:-1]
        )  # after close() the mean is taken in another order


def test_fragments_with_everybody_are_streaming_diloco():
    """Where all take as long, each has the moved fragment before its next update."""
    config = settings(quorum=3, steps=9, fragments=3)
    found = in_process(timed, 3, config, STEPS, (1.0, 1.0, 1.0))
    expected = references.streaming_diloco(simulated_workers(3, "plain"), STEPS, 9, THIRDS, 1, 0.6, 0.8, 0.0)
    assert_histories_agree([[*history, last] for history, _, _, last, _ in found], expected)


def timed(world: World, config, steps, seconds, samples=None):
    """Train with steps of `seconds`; parameters, when each step ended, what averaged() holds, and the end."""
    task = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=world.rank)
    history, ended = [], []
    with world.attach(model, optimizer, config) as engine:
        given = range(steps)
        if samples is not None:
            given = engine.loader(range(3 * steps * max(samples)), samples[world.rank])
        for step, _ in zip(range(steps), given, strict=False):
            world.group.sleep(seconds[world.rank])
            take_step(task.local_loss(model, step, world.rank), optimizer)
            history.append(values(model))
            ended.append(world.group.time())
        with engine.averaged():
            averaged = values(model)
        np.testing.assert_array_equal(values(model), history[-1])
    return history, ended, averaged, values(model), engine.statistics


@pytest.mark.parametrize(
    ("quorum", "grace", "seconds", "samples"),
    [
        (2, 0.0, (1.0, 1.0, 10.0), None),
        (2, 0.25, (1.0, 1.0, 10.0), (2, 7, 3)),
        (2, 5.5, (1.0, 1.3, 2.9), (2, 7, 3)),
        (2, 0.25, (2.0, 1.0, 1.0), None),
        (3, 0.0, (1.0, 1.3, 2.9), (2, 7, 3)),
        (3, 2.0, (2.0, 1.0, 1.0), None),
        (1, 0.0, (1.0, 1.3, 2.9), (2, 7, 3)),
        (1, 3.25, (1.0, 1.0, 10.0), None),
    ],
)
def test_it_equals_its_reference_on_a_clock(quorum, grace, seconds, samples):
    """Late reports are in a later move with their own weight; none is lost, and none is counted twice."""
    config = settings(quorum=quorum, grace_seconds=grace)
    found = in_process(timed, 3, config, STEPS, seconds, samples)
    histories, end, moves = references.decoupled_diloco(
        simulated_workers(3, "plain"), STEPS, seconds, samples or (1, 1, 1), 4, quorum, grace, 0.6, 0.8
    )
    for rank, (history, ended, averaged, last, _) in enumerate(found):
        np.testing.assert_allclose(history, histories[rank], rtol=1e-9, atol=1e-9, err_msg=f"rank {rank}")
        np.testing.assert_allclose(averaged, end, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(last, end, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(last, found[0][3])
        # Whoever it is, nobody has waited for anybody.
        np.testing.assert_allclose(ended, seconds[rank] * np.arange(1, STEPS + 1), rtol=1e-12)
    assert {rank for _, ranks in moves for rank in ranks} == {0, 1, 2}


def test_the_fast_ones_do_not_follow_the_slow_one():
    """Two of three are a quorum: they synchronise as often whether the third takes as long or ten times."""
    config = settings(quorum=2, grace_seconds=0.5)
    even, slow = (in_process(timed, 3, config, STEPS, (1.0, 1.0, last)) for last in (1.0, 10.0))
    for rank in (0, 1):
        assert even[rank][1] == slow[rank][1]
        assert even[rank][4]["synchronisations"] == slow[rank][4]["synchronisations"] == STEPS // 4
    assert slow[0][4]["contributors"] == 3  # once, with what the slow one has brought
    assert slow[0][4]["exposed_communication_seconds"] >= 0


def test_with_a_delay_of_0_a_quorum_waits_for_itself_alone():
    """Each report is answered when a quorum is there; the slow one's comes into a move of the others."""
    config = settings(quorum=2, grace_seconds=0.5, delay=0)
    found = in_process(timed, 3, config, STEPS, (1.0, 1.0, 10.0))
    assert found[0][1] == found[1][1]
    # One grace a move, but in the move in which all three were, and then two of them are there at once.
    assert STEPS + 0.5 * 9 <= found[0][1][-1] <= STEPS + 0.5 * 10


def finishing(world, config):
    """Each rank trains for longer than the one before."""
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, config) as engine, engine.join():
        for step in range(8 + 12 * world.rank):
            world.group.sleep(1.0)
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
    return engine.statistics["synchronisations"], values(model)


@pytest.mark.parametrize("delay", [0, "unbounded"])
def test_who_has_finished_is_waited_for_no_longer(delay):
    """The quorum of three becomes one of those that are left."""
    found = in_process(finishing, 3, settings(quorum=3, grace_seconds=7.0, delay=delay))
    assert [synchronisations for synchronisations, _ in found] == [2, 5, 8]
    for _, last in found:
        np.testing.assert_array_equal(last, found[0][1])


def apart(world, config):
    """Ranks that look at the model while some have fragments on their way, and others have others."""
    model, optimizer = trainable("toy", "plain")
    seen = []
    with world.attach(model, optimizer, config) as engine:
        for step in range(24):
            world.group.sleep((1.0, 1.4, 3.1)[world.rank])
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            if step % 5 == 3:
                before = values(model)
                with engine.averaged():
                    seen.append(values(model))
                np.testing.assert_array_equal(values(model), before)
                engine.state_dict()
    return [*seen, values(model)]


@pytest.mark.parametrize("quorum", [1, 2, 3])
def test_all_hold_the_same_model_whoever_waits_for_whom(quorum):
    """Over a network with latency, so that answers are on their way when ranks meet."""
    config = settings(quorum=quorum, grace_seconds=0.7, fragments=3, steps=3)

    def rank(group):
        return apart(World(group.rank(), 3, group), config)

    first, *others = relaxcomm.simulate(rank, 3, link=Link(latency_seconds=0.45))
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize(
    "more", [{}, {"quorum": 1}, {"quorum": 3, "grace_seconds": 0.0}, {"steps": 3, "fragments": 3}]
)
def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_been(more):
    saved = assert_resumes(settings(**{"steps": 7, "quorum": 2, "grace_seconds": 1.5, **more}))
    assert any(state["late_parameters"] for _, kept in saved for (state,) in kept.values())


def paced(world, seconds, steps):
    """Rank 2 takes ten times as long for a step; how long each took, and the end."""
    torch.set_num_threads(1)
    task = CASES["mlp"]
    model, optimizer = trainable("mlp", "momentum", seed=world.rank)
    with world.attach(
        model, optimizer, {**settings(quorum=2, grace_seconds=seconds), "bucket_bytes": 1024}
    ) as engine:
        begin = time.monotonic()
        for step in range(steps if world.rank < 2 else steps // 10):
            time.sleep(seconds * (1 if world.rank < 2 else 10))
            take_step(task.local_loss(model, step, world.rank), optimizer)
        took = time.monotonic() - begin
        buckets = len(engine._session.bound.plan.buckets)
        with engine.averaged():
            averaged = values(model)
    return took, engine.statistics["synchronisations"], buckets, averaged, values(model)


@pytest.mark.ranks
def test_a_slow_process_holds_up_nobody():
    found = on_gloo(paced, 3, 0.02, 100)
    for took, synchronisations, buckets, averaged, last in found:
        assert buckets > 1
        assert synchronisations >= 2
        np.testing.assert_allclose(averaged, last, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(last, found[0][4])
        assert took < 12  # who waited for a report of the slow one with each of its own would take 20 s


def test_more_than_there_are_is_refused_on_all_ranks():
    with pytest.raises(
        TopologyError, match=r"waits for 4 workers, and there are 3; use a quorum of at most 3"
    ):
        in_process(train, 3, settings(quorum=4), 1)


@pytest.mark.parametrize("quorum", [0, -1, 1.5, "all"])
def test_what_is_no_quorum_is_refused(quorum):
    with pytest.raises(ConfigError, match="quorum"):
        relaxcomm.config.load(settings(quorum=quorum))


def test_fragments_that_cannot_take_turns_are_refused():
    with pytest.raises(CompositionError, match="use at most 4 fragments"):
        relaxcomm.config.load(settings(fragments=5))
    with pytest.raises(CompositionError, match="2 rules, each of which has a quorum of its own"):
        relaxcomm.config.load(settings(fragments=2, delay=1))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"payload": parameters()}, "payload deltas"),
        ({"payload": deltas(), "outer": primitives.slowmo(lr=1.0, momentum=0.5)}, "a worker's optimizer"),
        ({"payload": deltas(), "trigger": primitives.relative_gradient_change(threshold=0.1)}, "go on alone"),
    ],
)
def test_what_cannot_go_with_a_quorum_is_refused(rule, words):
    with pytest.raises(CompositionError, match=words):
        Rule(exchange=quorum_average(), **rule)


@pytest.mark.parametrize("outer", [primitives.adam(lr=0.05), primitives.sgd(lr=0.9, momentum=0.5)])
def test_other_outers_move_the_model_where_it_lies(outer):
    """With everybody they do what they do on the workers."""
    trigger = primitives.every(steps=4)
    served, local = (
        Rule(trigger=trigger, payload=deltas(), exchange=exchange, outer=outer)
        for exchange in (quorum_average(quorum=3), primitives.all_reduce())
    )
    for one, other in zip(
        *(in_process(train, 3, {"algorithm": relaxcomm.Algorithm((rule,))}, 12) for rule in (served, local)),
        strict=True,
    ):
        np.testing.assert_array_equal(one[:-1], other[:-1])


def coded(world, config):
    history = train(world, config, STEPS)
    return history[-1]


def test_reports_may_be_coded():
    """Half-precision reports end near those in full precision; what is kept is wide."""
    exact, short = (
        in_process(coded, 3, settings(**EVERYBODY, **more))
        for more in ({}, {"compressor": {"cast": {"dtype": "float16"}}})
    )
    np.testing.assert_allclose(short[0], exact[0], atol=5e-3)
    assert not np.array_equal(short[0], exact[0])
