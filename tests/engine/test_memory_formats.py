"""State that lies flat stays that of its parameters, also when these lie in memory in another order."""

from __future__ import annotations

import copy

import pytest
import torch

from relaxcomm import attach, simulate

FIRST, LAST = torch.contiguous_format, torch.channels_last
ALGORITHMS = {
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

    def __init__(self, group, algorithm, memory_format, fused=False):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3))
        self.model.to(memory_format=memory_format)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, fused=fused)
        self.engine = attach(
            self.model, self.optimizer, {"algorithm": algorithm, "bucket_bytes": 1024}, process_group=group
        )

    def steps(self, *steps):
        for step in steps:
            torch.manual_seed(100 * self.engine.world.rank + step)
            self.optimizer.zero_grad()
            self.model(torch.randn(2, 3, 8, 8)).square().mean().backward()
            self.optimizer.step()

    def flat(self):
        return torch.cat([one.detach().flatten() for one in self.model.parameters()])


def saved(algorithm, memory_format, fused=False):
    """What each rank saves after five steps, and where it is four steps later."""

    def rank(group):
        run = Training(group, algorithm, memory_format, fused)
        run.steps(*range(5))
        states = copy.deepcopy(run.engine.run_state_dict())
        run.steps(*range(5, 9))
        return states, run.flat()

    states, ends = zip(*simulate(rank, 3), strict=True)
    return list(states), list(ends)


def resumed(states, algorithm, memory_format, size=3, fused=False):
    """Where ranks are four steps after what was saved."""

    def rank(group):
        run = Training(group, algorithm, memory_format, fused)
        mine = copy.deepcopy(states)
        mine = mine[group.rank()] if size == len(states) else run.engine.carry_run_state_dicts(mine)
        run.engine.load_run_state_dict(mine)
        run.steps(*range(5, 9))
        return run.flat()

    return simulate(rank, size)


@pytest.mark.parametrize(
    ("name", "saved_last"), [*((name, False) for name in ALGORITHMS), ("momentum", True)]
)
def test_a_checkpoint_goes_on_in_the_other_format(name, saved_last):
    before, now = (LAST, FIRST) if saved_last else (FIRST, LAST)
    states, ends = saved(ALGORITHMS[name], before)
    for one, other in zip(ends, resumed(states, ALGORITHMS[name], now), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_so_it_does_among_another_number_of_ranks():
    algorithm = ALGORITHMS["momentum"]
    states, _ = saved(algorithm, FIRST)
    found = {one: resumed(states, algorithm, one, size=2)[0] for one in (FIRST, LAST)}
    torch.testing.assert_close(found[LAST], found[FIRST], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["bsp", ALGORITHMS["residuals"]], ids=["bsp", "residuals"])
@pytest.mark.parametrize("before", [FIRST, LAST], ids=str)
def test_a_fused_optimizer_steps_along_gradients_that_lie_as_the_parameters(before, algorithm):
    states, ends = saved(algorithm, before, fused=True)
    now = LAST if before is FIRST else FIRST
    for one, other in zip(ends, resumed(states, algorithm, now, fused=True), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_it_does_when_the_model_is_converted_in_mid_training():
    def rank(group, memory_format):
        run = Training(group, "bsp", FIRST, fused=True)
        run.steps(*range(3))
        run.model.to(memory_format=memory_format)
        run.steps(*range(3, 6))
        return run.flat()

    stayed, converted = (simulate(lambda group, one=one: rank(group, one), 3) for one in (FIRST, LAST))
    torch.testing.assert_close(converted[0], stayed[0], rtol=1e-4, atol=1e-6)


def test_a_switch_carries_residuals_over_from_the_other_format():
    states, _ = saved(ALGORITHMS["residuals"], FIRST)

    def rank(group, memory_format):
        run = Training(group, ALGORITHMS["residuals"], memory_format)
        run.engine.load_run_state_dict(copy.deepcopy(states[group.rank()]))
        run.engine.switch(ALGORITHMS["residuals"])
        run.steps(*range(5, 9))
        return run.flat()

    first, last = (simulate(lambda group, one=one: rank(group, one), 3) for one in (FIRST, LAST))
    for one, other in zip(first, last, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
