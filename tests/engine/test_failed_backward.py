"""A backward that raised an error, and what goes on after it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm import UsageError
from tests.engine.harness import in_process, on_gloo, values


class Fails(torch.autograd.Function):
    """Passes a tensor on; its backward fails where that is asked for."""

    @staticmethod
    def forward(context, x, fails):
        context.fails = fails
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if context.fails:
            raise MemoryError("out of memory")
        return gradient, None


class Model(nn.Module):
    """Its last layer has gradients, and may be on its way, when the first one fails."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x, fails=False):
        return self.second(Fails.apply(torch.tanh(self.first(x)), fails))


def failing(world, algorithm, loads: bool, fails_at: int | None = 3):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 20}) as engine:
        for step in range(7):
            x, saved = torch.randn(8, 3, generator=draw), engine.run_state_dict()
            for fails in (True, False) if step == fails_at else (False,):
                optimizer.zero_grad()
                try:
                    model(x, fails).square().mean().backward()
                    optimizer.step()
                except MemoryError:
                    if loads:
                        engine.load_run_state_dict(saved)
                except UsageError as error:
                    engine.close(average=False)
                    return str(error)
        return engine.statistics["steps"], values(model).tolist()


ALGORITHMS = [
    "bsp",
    "topk_sgd",
    "delayed_sgd",
    {"name": "selsync", "threshold": 0.1, "aggregate": "gradients"},
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_a_state_that_all_load_lets_the_run_go_on(algorithm):
    assert in_process(failing, 3, algorithm, True) == in_process(failing, 3, algorithm, True, None)


@pytest.mark.ranks
def test_a_state_that_all_load_lets_the_run_go_on_on_gloo():
    found, expected = on_gloo(failing, 3, "bsp", True), in_process(failing, 3, "bsp", True, None)
    for (steps, ended), (wanted_steps, wanted) in zip(found, expected, strict=True):
        assert steps == wanted_steps
        assert ended == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_one_worker_alone_goes_on_as_without_an_engine(algorithm):
    assert in_process(failing, 1, algorithm, False) == in_process(failing, 1, algorithm, False, None)


def test_peers_wait_otherwise_and_the_error_says_what_to_do():
    for message in in_process(failing, 3, "bsp", False):
        assert "load a state on all (engine.load_run_state_dict)" in message
