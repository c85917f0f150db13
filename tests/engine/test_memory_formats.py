"""State that lies flat stays that of its parameters, also when these lie in memory in another order.

The optimizers are fused: what they read must lie in memory as the parameters do.
"""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

from relaxcomm import attach, simulate

FIRST, LAST = torch.contiguous_format, torch.channels_last
LATE = {"payload": "gradients", "exchange": "all_reduce", "delay": 1}
ALGORITHMS = {
    "gradients": "bsp",
    "momentum": {"name": "diloco", "steps": 2},
    "residuals": {"name": "topk_sgd", "density": 0.2},
    "late": {
        "rules": [
            {
                "trigger": {"every": {"steps": 2}},
                "payload": "parameters",
                "exchange": "all_reduce",
                "delay": 1,
            }
        ]
    },
}


class Training:
    """A convolution that each rank trains on data of its own."""

    def __init__(self, group, algorithm, memory_format, momentum=0.9):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3))
        self.model.to(memory_format=memory_format)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=momentum, fused=True)
        self.engine = attach(
            self.model, self.optimizer, {"algorithm": algorithm, "bucket_bytes": 1024}, process_group=group
        )

    def steps(self, *steps):
        for step in steps:
            torch.manual_seed(100 * self.engine.world.rank + step)
            self.optimizer.zero_grad()
            self.model(torch.randn(2, 3, 8, 8)).square().mean().backward()
            self.optimizer.step()

    def end(self):
        """Where it is, before the engine is closed."""
        flat = torch.cat([one.detach().flatten() for one in self.model.parameters()])
        self.engine.close()
        return flat


def saved(algorithm, memory_format):
    """What each rank saves after five steps, and where it is four steps later."""

    def rank(group):
        run = Training(group, algorithm, memory_format)
        run.steps(*range(5))
        states = copy.deepcopy(run.engine.run_state_dict())
        run.steps(*range(5, 9))
        return states, run.end()

    states, ends = zip(*simulate(rank, 3), strict=True)
    return list(states), list(ends)


def resumed(states, algorithm, memory_format, size=3):
    """Where ranks are four steps after what was saved."""

    def rank(group):
        run = Training(group, algorithm, memory_format)
        mine = copy.deepcopy(states)
        mine = mine[group.rank()] if size == len(states) else run.engine.carry_run_state_dicts(mine)
        run.engine.load_run_state_dict(mine)
        run.steps(*range(5, 9))
        return run.end()

    return simulate(rank, size)


@pytest.mark.parametrize(
    ("name", "saved_last"), [*((name, False) for name in ALGORITHMS), ("momentum", True)]
)
def test_a_checkpoint_goes_on_in_the_other_format(name, saved_last):
    before, now = (LAST, FIRST) if saved_last else (FIRST, LAST)
    states, ends = saved(ALGORITHMS[name], before)
    for one, other in zip(ends, resumed(states, ALGORITHMS[name], now), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["bsp", "topk_sgd", {"rules": [LATE]}], ids=str)
@pytest.mark.parametrize("begins_last", [False, True])
def test_a_model_is_converted_in_mid_run(algorithm, begins_last):
    before = LAST if begins_last else FIRST

    def rank(group, now):
        run = Training(group, algorithm, before, momentum=0.0)  # torch leaves moments as they lie
        run.steps(*range(3))
        run.model.to(memory_format=now)
        run.steps(*range(3, 6))
        run.engine.close()  # with late gradients
        return run.end()

    as_it_was, converted = (simulate(partial(rank, now=now), 3)[0] for now in (FIRST, LAST))
    torch.testing.assert_close(converted, as_it_was, rtol=1e-4, atol=1e-6)


def test_so_it_does_among_another_number_of_ranks():
    algorithm = ALGORITHMS["momentum"]
    states, _ = saved(algorithm, FIRST)
    found = {one: resumed(states, algorithm, one, size=2)[0] for one in (FIRST, LAST)}
    torch.testing.assert_close(found[LAST], found[FIRST], rtol=1e-4, atol=1e-6)


def test_a_switch_carries_residuals_over_from_the_other_format():
    states, _ = saved(ALGORITHMS["residuals"], FIRST)

    def rank(group, memory_format):
        run = Training(group, ALGORITHMS["residuals"], memory_format)
        run.engine.load_run_state_dict(copy.deepcopy(states[group.rank()]))
        run.engine.switch(ALGORITHMS["residuals"])
        run.steps(*range(5, 9))
        return run.end()

    first, last = (simulate(lambda group, one=one: rank(group, one), 3) for one in (FIRST, LAST))
    for one, other in zip(first, last, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_moments_that_are_older_than_the_format_are_saved_as_they_are_read():
    """Fused Adagrad makes its sums when it is made, here before the model is converted."""

    def rank(group, restarts):
        def attached():
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(128, 1))
            optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, fused=True)
            model.to(memory_format=LAST)
            return model, optimizer, attach(model, optimizer, "bsp", process_group=group)

        model, optimizer, engine = attached()
        for step in range(6):
            if restarts and step == 3:
                state = engine.run_state_dict()
                engine.close()
                model, optimizer, engine = attached()
                engine.load_run_state_dict(state)
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(2, 3, 6, 6)).square().mean().backward()
            optimizer.step()
        engine.close()
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    whole, restarted = (simulate(partial(rank, restarts=restarts), 1)[0] for restarts in (False, True))
    torch.testing.assert_close(restarted, whole, rtol=0, atol=0)


class Zeroing(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.zero_grad()


def test_gradients_that_a_step_has_cleared_stay_so():
    def rank(group, fused, hangs):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3))
        kind = torch.optim.SGD if hangs else Zeroing
        optimizer = kind(model.parameters(), lr=0.01, fused=fused)
        if hangs:
            optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
        config = {"algorithm": "bsp", "bucket_bytes": 1024}
        with attach(model, optimizer, config, process_group=group):
            for step in range(4):
                model.to(memory_format=LAST if step else FIRST)
                torch.manual_seed(10 * step + group.rank())
                model(torch.randn(2, 3, 8, 8)).square().mean().backward()
                optimizer.step()
                assert all(one.grad is None for one in model.parameters())
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    for hangs in (False, True):
        plain, fused = (simulate(partial(rank, fused=one, hangs=hangs), 3)[0] for one in (False, True))
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)
