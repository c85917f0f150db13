"""A batch is given up after its backward as the message says: no gradients, and a step all the same."""

from __future__ import annotations

import numpy as np
import pytest

import relaxcomm
from tests.engine.harness import World, in_process, simulated_workers, values
from tests.models import CASES, make_optimizer

STEPS, GIVEN_UP = 7, (3, 5)
KEEP_STATE = ["topk_sgd", "qadam", "selsync"]
LOCAL = {"name": "local_sgd", "steps": 4}


def train(world: World, config: object, way: str):
    """The parameters around each step; some batches are given up after their backward."""
    model = CASES["toy"].model(seed=0)
    optimizer = make_optimizer("momentum" if config == "bsp" else "plain", model)
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
