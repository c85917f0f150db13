"""A batch is given up after its backward as the message says: no gradients, and a step all the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import relaxcomm
from tests.engine.harness import World, in_process, on_gloo, simulated_workers, values
from tests.models import CASES, make_optimizer, trainable

STEPS, GIVEN_UP = 7, (3, 5)
KEEP_STATE = ["topk_sgd", "qadam", "selsync"]
LOCAL = {"name": "local_sgd", "steps": 4}


def train(world: World, config: object, way: str):
    """The parameters around each step; some batches are given up after their backward."""
    model, optimizer = trainable("toy", "momentum" if config == "bsp" else "plain", seed=0)
    history = [values(model)]
    with world.attach(model, optimizer, {"algorithm": config}) as engine:
        for step in range(STEPS):
            CASES["toy"].local_loss(model, step, world.rank).backward()
            if step in GIVEN_UP:
                optimizer.zero_grad()
                if way == "no step":
                    continue
            optimizer.step()
            optimizer.zero_grad()
            history.append(values(model))
        steps = engine.statistics["steps"]
    return history, steps


@pytest.mark.parametrize("config", ["bsp", *KEEP_STATE, LOCAL], ids=str)
def test_a_batch_that_is_given_up_changes_nothing(config):
    results = in_process(train, 3, config, "step")
    for history, steps in results:
        assert steps == STEPS
        if config != LOCAL:
            np.testing.assert_allclose(history, results[0][0])
    history = results[0][0]
    for step in range(STEPS):
        stands_still = bool(np.array_equal(history[step], history[step + 1]))
        averages = config == LOCAL and (step + 1) % 4 == 0
        assert stands_still == (step in GIVEN_UP and not averages)


def test_of_a_late_gradient_that_in_grad_is_given_up():
    """The batch's own has left in its backward, and comes when it is due."""
    delay, results = 2, in_process(train, 3, {"name": "delayed_sgd", "delay": 2}, "step")
    workers, sent = simulated_workers(3, "plain"), []
    for step in range(STEPS + delay):
        sent.append(workers.gradients(step).mean(axis=0) if step < STEPS else None)
        if step >= delay and step not in GIVEN_UP:
            workers.update(sent[step - delay])
        for history, steps in results:
            assert steps == STEPS
            if step < STEPS:
                np.testing.assert_allclose(history[step + 1], workers.parameters[0], rtol=1e-6)


@pytest.mark.parametrize("config", KEEP_STATE)
def test_it_says_how_to_give_one_up(config):
    words = (
        r"a second synchronising backward in step 3.*zero_grad\(\) and then optimizer.step\(\) all the same"
    )
    with pytest.raises(relaxcomm.UsageError, match=words):
        in_process(train, 3, config, "no step")


def accumulate(world: World, config: object, alone: bool, clear, zeroes_inside: bool, by_parts: bool):
    """Steps of two backwards each; in one the sum is given up, by all ranks or by one alone."""
    model, rank = CASES["toy"].model(seed=0), world.rank
    optimizer = make_optimizer("momentum", model)
    history = [values(model)]
    with world.attach(model, optimizer, {"algorithm": config}) as engine:
        called = torch.nn.Sequential(*model) if by_parts else model
        for step in range(STEPS):
            with engine.no_sync():
                loss = CASES["toy"].local_loss(called, step, rank)
                if zeroes_inside:
                    clear(optimizer)
                loss.backward()
            CASES["toy"].local_loss(called, step + STEPS, rank).backward()
            if step in GIVEN_UP and (rank == 1 or not alone):
                if not zeroes_inside:
                    clear(optimizer)
                continue
            optimizer.step()
            optimizer.zero_grad()
            history.append(values(model))
        steps = engine.statistics["steps"]
    return history, steps


def to_none(optimizer):
    optimizer.zero_grad()


def to_zeros(optimizer):
    optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize(
    ("clear", "zeroes_inside", "by_parts"),
    [(to_none, False, False), (to_zeros, False, False), (to_none, True, False), (to_none, False, True)],
)
def test_sums_begin_anew_after_one_that_is_given_up(clear, zeroes_inside, by_parts):
    results = in_process(accumulate, 3, "bsp", False, clear, zeroes_inside, by_parts)
    workers = simulated_workers(3, "momentum")
    expected = [workers.parameters[0].copy()]
    for step in range(STEPS):
        if step not in GIVEN_UP:
            workers.update((workers.gradients(step) + workers.gradients(step + STEPS)).mean(axis=0))
            expected.append(workers.parameters[0].copy())
    for history, steps in results:
        assert steps == STEPS - len(GIVEN_UP)
        np.testing.assert_allclose(history, expected, rtol=1e-6)


@pytest.mark.parametrize("network", [in_process, pytest.param(on_gloo, marks=pytest.mark.ranks)])
def test_one_that_is_given_up_by_one_rank_alone_is_an_error_on_all(network):
    with pytest.raises(Exception, match="not at the same place"):
        network(accumulate, 3, "bsp", True, to_none, False, False)


def test_no_sum_begins_anew_on_what_is_left():
    with pytest.raises(relaxcomm.UsageError, match=r"no_sync\(\) in step 3, after .*zero_grad\(\) and then"):
        in_process(accumulate, 3, "bsp", False, lambda optimizer: None, False, False)
    with pytest.raises(relaxcomm.UsageError, match=r"no_sync\(\) in step 3, after a backward outside: topk"):
        in_process(accumulate, 3, "topk_sgd", False, to_none, False, False)


def step_by_no_sync_alone(world: World):
    model, optimizer = trainable("toy", "plain", seed=0)
    with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
        CASES["toy"].local_loss(model, 0, world.rank).backward()
        optimizer.zero_grad()
        with engine.no_sync():
            CASES["toy"].local_loss(model, 1, world.rank).backward()
        optimizer.step()


def test_what_was_exchanged_and_given_up_counts_for_no_later_batch():
    with pytest.raises(relaxcomm.UsageError, match=r"after backward under no_sync\(\) only"):
        in_process(step_by_no_sync_alone, 3)
