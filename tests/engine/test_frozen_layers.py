"""Layers that are frozen after attach and trained again later: as by one worker with the whole batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.harness import World, in_process, values
from tests.models import take_step

STEPS, RANKS, ROWS = 6, 3, 4


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def train(
    model: nn.Sequential, optimizer: torch.optim.Optimizer, rows: slice, frozen: range, middle: Callable
):
    """Steps on some rows of each batch, with the first layer frozen in some of them."""
    for step in range(STEPS):
        if step == STEPS // 2:
            middle()
        model[0].requires_grad_(step not in frozen)
        batch = torch.randn(RANKS * ROWS, 6, generator=torch.Generator().manual_seed(step))
        take_step(model(batch[rows]).square().mean(), optimizer)


def on_ranks(world: World, second, frozen):
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = slice(world.rank * ROWS, (world.rank + 1) * ROWS)
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 256}) as engine:
        train(model, optimizer, mine, frozen, lambda: second and engine.switch(second))
    return values(model)


@pytest.mark.parametrize("frozen", [range(2), range(1, 4), range(2, STEPS - 1)], ids=str)
@pytest.mark.parametrize("second", [None, "bsp", {"name": "local_sgd", "steps": 1}], ids=str)
def test_they_are_trained_as_by_one_worker(second, frozen):
    alone = layers()
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), slice(None), frozen, lambda: None)
    for found in in_process(on_ranks, RANKS, second, frozen):
        np.testing.assert_allclose(found, values(alone), atol=1e-6)
