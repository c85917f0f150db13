"""Asynchronous model average: what arrives when, who waits for whom, and what becomes of it at the end."""

from __future__ import annotations

import copy
import math
import time

import numpy as np
import pytest

import relaxcomm
from relaxcomm import CompositionError, Link, NonFiniteError, Rule, primitives
from relaxcomm.primitives import averaging_server, deltas, gradients, parameters
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

STEPS = 30


def settings(**more):
    return {"algorithm": {"name": "async_model_average", **more}, "bucket_bytes": 512, "timeout_seconds": 20}


def reference(workers, steps, period, late):
    """A snapshot after a step is averaged and takes effect `late` steps later, before the update."""
    history, snapshot, sent = [], None, None
    for step in range(steps):
        gradient = workers.gradients(step)
        if snapshot is not None and step == sent + late:
            workers.parameters = workers.parameters + snapshot.mean(axis=0) - snapshot
            snapshot = None
        workers.update(gradient)
        if snapshot is None and (step + 1) % period == 0:
            snapshot, sent = workers.parameters, step
        history.append(workers.parameters)
    if snapshot is not None:
        workers.parameters = workers.parameters + snapshot.mean(axis=0) - snapshot
    return references.finish(workers, history)


def timed(world, steps, period, seconds=1.0, optimizer="momentum"):
    """Train with a step of `seconds`; the parameters after every step and after close."""
    task = CASES["toy"]
    model, optim = trainable("toy", optimizer, seed=world.rank)
    history = []
    with world.attach(model, optim, settings(steps=period)) as engine:
        for step in range(steps):
            world.group.sleep(seconds)
            take_step(task.local_loss(model, step, world.rank), optim)
            history.append(values(model))
    return [*history, values(model)], engine.statistics


def on_link(latency_seconds, *args):
    def rank(group):
        return timed(World(group.rank(), 3, group), *args)

    return relaxcomm.simulate(rank, 3, link=Link(latency_seconds=latency_seconds))


@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("late", [1, 3, 6])
def test_the_mean_takes_effect_when_it_has_come_back(period, late):
    """There and back takes `late` - 1/2 steps."""
    found = on_link((late - 0.5) / 2, STEPS, period)
    expected = reference(simulated_workers(3, "momentum"), STEPS, period, late)
    assert_histories_agree([history for history, _ in found], expected)


def paced(world, steps):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, settings()) as engine:
        for step in range(steps):
            world.group.sleep(5.0 if world.rank == 0 else 1.0)
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        ended = world.group.time()
    return ended, engine.statistics["synchronisations"]


def test_a_slow_worker_holds_up_nobody():
    """The fast ones send at first, and then whenever the slow one has ended a step."""
    slow, *fast = in_process(paced, 3, 20)
    assert slow[0] == 100.0
    assert fast == [(20.0, 5), (20.0, 5)]


def mean_kept(world, steps):
    """The loss does nothing, so only the exchange moves replicas that start apart."""
    task = CASES["toy"]
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, settings()) as engine:
        for parameter in model.parameters():
            parameter.data.add_(world.rank)
        before = values(model)
        for step in range(steps):
            world.group.sleep((1.0, 1.3, 2.9)[world.rank])
            take_step(0.0 * task.local_loss(model, step, world.rank), optimizer)
        engine.close(average=False)
    return before, values(model)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_mean_of_the_replicas_stays(size):
    before, after = (np.stack(rows) for rows in zip(*in_process(mean_kept, size, 12), strict=True))
    np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(after, np.broadcast_to(after.mean(axis=0), after.shape), rtol=1e-12)


def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_been():
    saved = assert_resumes(settings(steps=2))
    assert any(state["late_parameters"] for _, kept in saved for (state,) in kept.values())


def resumed(world, saved):
    """Parameters after a save, which each worker makes at a step of its own, or after loading it."""
    model, optimizer = trainable("toy", "momentum")
    at, history, states = (9, 7, 3)[world.rank], [], []
    with world.attach(model, optimizer, settings()) as engine:
        if saved is not None:
            engine.load_run_state_dict(saved[world.rank])
        for step in range(0 if saved is None else at, 2 * at):
            world.group.sleep((1.0, 1.3, 3.0)[world.rank])
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            history.append(values(model))
            if step == at - 1:
                states.append(copy.deepcopy(engine.run_state_dict()))
                history.clear()
    return [*history, values(model)], states


def test_a_resumed_run_goes_on_like_the_one_that_has_saved_while_workers_were_apart():
    whole = in_process(resumed, 3, None)
    again = in_process(resumed, 3, [state for _, (state,) in whole])
    for (ours, _), (theirs, _) in zip(again, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def not_finite_on_one(world, place):
    """Rank 1 alone gets NaN in a parameter; all ranks load what was saved, and train on."""
    model, optimizer = trainable("toy", "momentum")
    with world.attach(model, optimizer, settings(steps=2)) as engine:

        def train_on(steps, spoilt_at=None):
            for step in range(steps):
                world.group.sleep(1.0)
                CASES["toy"].local_loss(model, step, world.rank).backward()
                if step == spoilt_at:
                    list(model.parameters())[place].grad.fill_(math.nan)
                optimizer.step()
                optimizer.zero_grad()

        train_on(3)
        saved = copy.deepcopy(engine.run_state_dict())
        if world.rank == 1:
            with pytest.raises(NonFiniteError, match="nothing was sent"):
                train_on(4, spoilt_at=2)
            optimizer.zero_grad()
        else:
            train_on(4)
        engine.load_run_state_dict(saved)
        train_on(6)
    return values(model)


@pytest.mark.parametrize("place", [0, -1])
def test_all_load_a_good_state_where_one_rank_had_nan(place):
    first, *others = in_process(not_finite_on_one, 3, place)
    assert np.isfinite(first).all()
    for other in others:
        np.testing.assert_array_equal(other, first)


def uneven(world):
    model, optimizer = trainable("mlp", "momentum")
    with world.attach(model, optimizer, settings()) as engine:
        with engine.join():
            for step in range(20 + 15 * world.rank):
                time.sleep(0.01 + 0.002 * world.rank)  # room for several averages, on a busy machine, too
                take_step(CASES["mlp"].local_loss(model, step, world.rank), optimizer)
        engine.state_dict()
    return engine.statistics["steps"], engine.statistics["synchronisations"], values(model)


@pytest.mark.ranks
def test_on_gloo_ranks_of_different_speed_and_length():
    found = on_gloo(uneven, 3)
    assert [steps for steps, _, _ in found] == [20, 35, 50]
    assert all(synchronisations > 1 for _, synchronisations, _ in found)
    for _, _, parameters_ in found:
        np.testing.assert_array_equal(parameters_, found[0][2])


def test_without_a_delay_the_server_is_an_all_reduce_in_another_shape():
    gradients_, parameters_ = (
        {
            "rules": [
                {"payload": payload, "exchange": "averaging_server", "trigger": {"every": {"steps": steps}}}
            ]
        }
        for payload, steps in (("gradients", 1), ("parameters", 4))
    )
    expected = references.bsp(simulated_workers(3), STEPS)
    assert_histories_agree(in_process(train, 3, {"algorithm": gradients_}, STEPS), expected)
    expected = references.local_sgd(simulated_workers(3), STEPS, 4)
    assert_histories_agree(in_process(train, 3, {"algorithm": parameters_}, STEPS), expected)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"payload": parameters(), "exchange": primitives.all_reduce()}, "averaging_server"),
        ({"payload": gradients(), "exchange": averaging_server()}, "gradient in every step"),
        ({"payload": deltas(), "exchange": primitives.server(staleness=1)}, "takes no delay"),
    ],
)
def test_what_cannot_be_unbounded_is_refused(rule, words):
    with pytest.raises(CompositionError, match=words):
        Rule(**rule, delay="unbounded")


def test_other_words_for_a_delay_are_refused():
    with pytest.raises(relaxcomm.ConfigError, match="delay"):
        Rule(payload=parameters(), exchange=averaging_server(), delay="soon")
