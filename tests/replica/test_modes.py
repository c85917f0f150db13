"""Optimizers that keep two models in one: the one that is evaluated is averaged, whatever their mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.harness import in_process, values
from tests.models import CASES, take_step

CASE = CASES["toy"]


class TwoInOne(torch.optim.SGD):
    """In train mode parameters hold `y`, in eval mode the model that is evaluated, `x = 2 y - z`."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        for group in self.param_groups:
            group["train_mode"] = True

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            assert group["train_mode"]
            for p in group["params"]:
                self.state[p].setdefault("z", p.clone()).sub_(p.grad, alpha=0.2)
        super().step(closure)

    def eval(self):
        self._change(2.0, train_mode=False)

    def train(self):
        self._change(0.5, train_mode=True)

    @torch.no_grad()
    def _change(self, factor, *, train_mode):
        for group in self.param_groups:
            if group["train_mode"] != train_mode:
                group["train_mode"] = train_mode
                for p in group["params"]:
                    p.copy_(self.state[p]["z"].lerp(p, factor))


def trained(world, algorithm, closes_in):
    """Two models each time: what this rank evaluates, and what it holds inside averaged(); the end's last."""
    model = CASE.model(seed=world.rank)
    optimizer = TwoInOne(model.parameters())
    seen = []
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for step in range(7):
            take_step(CASE.local_loss(model, step, world.rank), optimizer)
            before = values(model)
            optimizer.eval()
            mine = values(model)
            optimizer.train()
            kept = values(model)
            with engine.averaged():
                held = values(model)
                optimizer.eval()  # as whoever evaluates does; it is so already
                np.testing.assert_array_equal(values(model), held)
                optimizer.train()
            np.testing.assert_array_equal(values(model), kept)
            np.testing.assert_allclose(kept, before, atol=1e-12)
            assert optimizer.param_groups[0]["train_mode"]
            seen.append((mine, held))
        if closes_in == "eval":
            optimizer.eval()
    optimizer.eval()
    return [*seen, (mine, values(model))]


@pytest.mark.parametrize("closes_in", ["train", "eval"])
@pytest.mark.parametrize("algorithm", [{"name": "local_sgd", "steps": 3}, "d_psgd", "bsp"])
def test_the_mean_is_that_of_what_is_evaluated(algorithm, closes_in):
    ranks = in_process(trained, 3, algorithm, closes_in)
    for of_all in zip(*ranks, strict=True):
        mean = sum(mine for mine, _ in of_all) / 3
        for _, held in of_all:
            np.testing.assert_allclose(held, of_all[0][1], rtol=1e-12, atol=1e-12)
            if algorithm != "d_psgd":  # of which a mix is on its way
                np.testing.assert_allclose(held, mean, rtol=1e-9, atol=1e-9)
