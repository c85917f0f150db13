"""What all ranks tell each other at the end of a run, before the engine is closed."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import UsageError, attach, simulate


def gather(engine, value):
    return engine.together(lambda: engine.world.gather(value, "a test"))


LOCAL = {"name": "local_sgd", "steps": 2}


def run(group, then, algorithm=LOCAL, steps=3):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, optimizer, {"algorithm": algorithm}, process_group=group) as engine:
        for _ in range(steps):
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


@pytest.mark.parametrize(("average", "added"), [(True, [1.0] * 3), (None, [0.0, 3.0, 0.0])])
def test_replicas_that_cannot_differ_are_averaged_if_that_is_wanted(average, added):
    def then(engine, model):
        before = model.bias.detach().clone()
        with torch.no_grad():
            model.bias += 3 * (engine.world.rank == 1)
        engine.finish(average=average)
        return float(model.bias.detach() - before)

    assert simulate(lambda group: run(group, then, "bsp"), 3) == pytest.approx(added)


def test_what_is_on_its_way_is_applied():
    def then(engine, model):
        before = model.weight.detach().sum().item()
        engine.finish(average=False)
        return before, model.weight.detach().sum().item()

    before, after = zip(*simulate(lambda group: run(group, then, LOCAL | {"delay": 1}, 2), 3), strict=True)
    assert len(set(before)) == 3
    assert after == pytest.approx([sum(before) / 3] * 3, abs=1e-6)  # sums of entries that cancel


def test_the_generation_of_a_run_whose_ranks_stay():
    def then(engine, model):
        return engine.generation.number, engine.generation.workers, engine.generation.lost

    assert simulate(lambda group: run(group, then), 2) == [(0, (0, 1), {})] * 2
