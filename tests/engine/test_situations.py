"""Every situation under bsp and local SGD equals N plain workers whose averages are taken by hand."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from tests.engine.harness import World, values
from tests.engine.situations import SITUATIONS, Situation
from tests.models import Case, make_optimizer, regression

STEPS, PERIOD = 7, 3
ALGORITHMS = {"bsp": "bsp", "local_sgd": {"name": "local_sgd", "steps": PERIOD}}


def make(situation: Situation, seed: int) -> torch.nn.Module:
    return Case(situation.make, regression(6, 4, torch.float64), torch.nn.functional.mse_loss).model(seed)


def average_gradients(models) -> None:
    """The mean over workers; absent counts as zero, and stays absent where no worker has one."""
    for same in zip(*(model.parameters() for model in models), strict=True):
        present = [parameter.grad for parameter in same if parameter.grad is not None]
        for parameter in same if present else ():
            parameter.grad = sum(present) / len(same)


def average_parameters(models) -> None:
    with torch.no_grad():
        for same in zip(*(model.parameters() for model in models), strict=True):
            mean = sum(same) / len(same)
            for parameter in same:
                parameter.copy_(mean)


def expected_histories(situation: Situation, algorithm: str, size: int, set_to_none: bool):
    models = [make(situation, 0) for _ in range(size)]
    optimizers = [make_optimizer("momentum", model) for model in models]
    histories = [[] for _ in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            situation.backward(model, step, rank, nullcontext)
        if algorithm == "bsp":
            average_gradients(models)
        for model, optimizer in zip(models, optimizers, strict=True):
            situation.update(model, optimizer)
            optimizer.zero_grad(set_to_none)
        if algorithm == "local_sgd" and (step + 1) % PERIOD == 0:
            average_parameters(models)
        for history, model in zip(histories, models, strict=True):
            history.append(values(model))
    return histories


def run(world: World, name: str, algorithm: str, set_to_none: bool):
    situation = SITUATIONS[name]
    model = make(situation, world.rank)
    optimizer = make_optimizer("momentum", model)
    history = []
    with world.attach(model, optimizer, {"algorithm": ALGORITHMS[algorithm]}) as engine:
        for step in range(STEPS):
            situation.backward(model, step, world.rank, engine.no_sync)
            situation.update(model, optimizer)
            optimizer.zero_grad(set_to_none)
            history.append(values(model))
        steps = engine.statistics["steps"]
    return history, steps


@pytest.mark.every_other("network", "name", "algorithm", "set_to_none", of=6)
@pytest.mark.parametrize("set_to_none", [True, False], ids=["set_to_none", "zeroed"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_situation_equals_plain_workers(network, name, algorithm, set_to_none):
    expected = expected_histories(SITUATIONS[name], algorithm, 3, set_to_none)
    for rank, (history, steps) in enumerate(network(run, 3, name, algorithm, set_to_none)):
        assert steps == STEPS
        for step, (found, wanted) in enumerate(zip(history, expected[rank], strict=True)):
            np.testing.assert_allclose(
                found, wanted, rtol=1e-9, atol=1e-9, err_msg=f"{name}, rank {rank}, after step {step}"
            )
