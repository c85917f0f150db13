"""Gradients on their way are saved as often as a run is, and land as if it had not been."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
import torch

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
