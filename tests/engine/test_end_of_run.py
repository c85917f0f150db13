"""What all ranks tell each other at the end of a run, before the engine is closed."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import UsageError, attach, simulate


def gather(engine, value):
    return engine.together(lambda: engine.world.gather(value, "a test"))


def run(group, then):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(
        model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 2}}, process_group=group
    ) as engine:
        for _ in range(3):
            model(torch.ones(1, 2) * group.rank()).sum().backward()
            optimizer.step()
        return then(engine, model)


def test_ranks_gather_in_rank_order_also_after_the_end():
    def then(engine, model):
        before = gather(engine, engine.world.rank)
        engine.finish()
        sums = gather(engine, float(model.weight.detach().sum()))
        engine.close()
        return before, sums

    for before, sums in simulate(lambda group: run(group, then), 3):
        assert before == [0, 1, 2]
        assert len(set(sums)) == 1, "finish() has averaged"


def test_what_was_ended_is_not_ended_again():
    def then(engine, model):
        engine.finish(average=False)
        with pytest.raises(UsageError, match="finish\\(\\) was called before"):
            engine.finish()
        with pytest.raises(UsageError, match="say there whether it averages"):
            engine.close(average=True)
        return float(model.weight.detach().sum())

    assert len(set(simulate(lambda group: run(group, then), 3))) > 1, "it was told not to average"


def test_the_generation_of_a_run_whose_ranks_stay():
    def then(engine, model):
        return engine.generation.number, engine.generation.workers, engine.generation.lost

    assert simulate(lambda group: run(group, then), 2) == [(0, (0, 1), {})] * 2
