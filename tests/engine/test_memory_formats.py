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

    def __init__(self, group, algorithm, memory_format):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3))
        self.model.to(memory_format=memory_format)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
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


def saved(algorithm, memory_format):
    """What each rank saves after five steps, and where it is four steps later."""

    def rank(group):
        run = Training(group, algorithm, memory_format)
        run.steps(*range(5))
        states = copy.deepcopy(run.engine.run_state_dict())
        run.steps(*range(5, 9))
        return states, run.flat()

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
