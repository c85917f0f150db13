"""Gradients on their way are saved as often as a run is, and land as if it had not been."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
import torch

from relaxcomm import attach, simulate
from tests.engine.harness import World, in_process, values
from tests.models import CASES, take_step, trainable

EIGHT_BITS = {  # no flags travel with the codes
    "payload": "gradients",
    "exchange": "scatter_gather",
    "compressor": {"quantize": {"bits": 8}},
    "delay": 3,
}
END = 7


def stopped(world: World, algorithm, *stops: int):
    """What a run ends with that is saved and loaded after some steps."""
    file = io.BytesIO()
    for begin, end in pairwise([0, *stops, END]):
        model, optimizer = trainable("toy", "momentum")
        with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
            if begin:
                engine.load_run_state_dict(torch.load(file, weights_only=False))
            for step in range(begin, end):
                take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            file = io.BytesIO()
            torch.save(engine.run_state_dict(), file)
            file.seek(0)
    return values(model)


@pytest.mark.parametrize("stops", [(5, 6), (END,)], ids=["soon again", "at the end"])
@pytest.mark.parametrize("algorithm", [{"name": "delayed_sgd", "delay": 3}, {"rules": [EIGHT_BITS]}], ids=str)
def test_a_run_that_is_saved_soon_after_it_was_resumed_goes_on(algorithm, stops):
    for once, whole in zip(
        in_process(stopped, 3, algorithm, *stops), in_process(stopped, 3, algorithm), strict=True
    ):
        np.testing.assert_array_equal(once, whole)


def evaluated(world: World, saves):
    """What a run ends with in which other weights are evaluated, and perhaps saved meanwhile."""
    model, optimizer = trainable("toy", "momentum")
    with world.attach(model, optimizer, {"algorithm": {"name": "delayed_sgd", "delay": 2}}) as engine:
        for step in range(END):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            if step == 3:
                trained = {name: value.clone() for name, value in model.state_dict().items()}
                model.load_state_dict({name: value + 1 for name, value in trained.items()})
                if saves:
                    engine.state_dict()
                model.load_state_dict(trained)
    return values(model)


def test_what_is_saved_during_an_evaluation_leaves_them_as_they_are():
    for one, other in zip(*(in_process(evaluated, 3, saves) for saves in (False, True)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("ignore:.*replicas part for good")
def test_they_land_beside_gradients_of_a_step_that_sends_none():
    """Which a parameter has that nobody had used when they were sent."""

    def rank(group):
        model = torch.nn.ParameterDict({name: torch.zeros(1) for name in ("always", "later")})
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        rule = {"payload": "gradients", "exchange": "all_reduce", "delay": 1, "active": [0, 2]}
        with attach(model, optimizer, {"algorithm": {"rules": [rule]}}, process_group=group) as engine:
            for step in range(3):
                optimizer.zero_grad()
                (-model["always"] - (model["later"] if step == 2 else 0.0)).sum().backward()
                optimizer.step()
            engine.close(average=False)
        return model["always"].item(), model["later"].item()

    assert simulate(rank, 3) == [(3.0, 1.0)] * 3
