"""One worker, with and without a process group: plain training, whatever the algorithm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from relaxcomm import attach
from tests import references
from tests.algorithms.test_five_algorithms import ALGORITHMS
from tests.engine.harness import World, in_process, simulated_workers, train, values
from tests.engine.test_compositions import COMPOSITIONS
from tests.models import CASES, make_optimizer, take_step, trainable


@pytest.mark.parametrize("name", ALGORITHMS)
def test_without_a_process_group_every_algorithm_equals_its_reference_of_one(name):
    assert not dist.is_initialized()
    algorithm, reference, arguments = ALGORITHMS[name]
    expected = reference(simulated_workers(1), 20, *arguments)
    history = train(World(0, 1), {"algorithm": algorithm}, 20)
    for found, rows in zip(history, expected, strict=True):
        np.testing.assert_allclose(found, rows[0], rtol=1e-12, atol=1e-12)
    assert not dist.is_initialized()


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_composition_works_alone(name):
    rules, reference, arguments = COMPOSITIONS[name]
    expected = reference(simulated_workers(1), 20, *arguments)
    (history,) = in_process(train, 1, {"algorithm": {"rules": rules}}, 20)
    for found, rows in zip(history, expected, strict=True):
        np.testing.assert_allclose(found, rows[0], rtol=1e-10, atol=1e-10)


def test_alone_bsp_is_plain_training_bit_for_bit():
    case = CASES["transformer"]
    plain, optimizer = trainable("transformer", "adamw", seed=0)
    for step in range(10):
        take_step(case.local_loss(plain, step, 0), optimizer)
    history = train(World(0, 1), {"algorithm": "bsp"}, 10, "adamw", "transformer")
    np.testing.assert_array_equal(history[-1], values(plain))


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))


def test_alone_one_pass_over_gradients_is_all():
    """They are copied into their bucket, and neither divided nor copied by an exchange with nobody."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with attach(model, optimizer, "bsp"):
        for _ in range(2):
            with Operators() as seen:
                model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert "aten._foreach_copy_.default" in seen.names
    others = ("mul", "div", "clone", "aten.copy_")
    assert not [name for name in seen.names for word in others if word in name]


def test_an_elastic_script_that_no_launcher_has_started_trains_alone(capsys):
    model = CASES["toy"].model()
    config = {"algorithm": "local_sgd", "membership": {"elastic": True}}
    with attach(model, make_optimizer("plain", model), config) as engine:
        assert engine.world.size == 1
    assert "1 rank, local_sgd, alone, so that nobody can join: " in capsys.readouterr().err


def gradients_without_optimizer(world: World):
    case = CASES["toy"]
    model = case.model(seed=0)
    parameters = list(model.parameters())
    with world.attach(model, None, {"algorithm": "bsp"}):
        for step in range(4):
            case.local_loss(model, step, world.rank).backward()
            with torch.no_grad():
                for parameter in parameters:
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    return values(model)


def test_without_an_optimizer_bsp_averages_the_gradients(network):
    workers = simulated_workers(3, "plain")
    expected = references.bsp(workers, 4)[-1][0]
    for found in network(gradients_without_optimizer, 3):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
