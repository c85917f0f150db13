"""While averaged() holds the mean, whatever changes or saves the run is refused before anything changes."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import attach, checkpoint, simulate
from relaxcomm.errors import UsageError

LOCAL = {"name": "local_sgd", "steps": 4}
REFUSED = {
    "switch()": lambda engine, *_: engine.switch("bsp"),
    "close()": lambda engine, *_: engine.close(),
    "finish()": lambda engine, *_: engine.finish(),
    "state_dict()": lambda engine, *_: engine.state_dict(),
    "load_state_dict()": lambda engine, *_: engine.load_state_dict({}),
    "run_state_dict()": lambda engine, *_: engine.run_state_dict(),
    "load_run_state_dict()": lambda engine, *_: engine.load_run_state_dict({}),
    "checkpoint.save()": lambda engine, _, path: checkpoint.save(engine, path),
    "SGD.step()": lambda engine, optimizer, _: optimizer.step(),
    "the event 'day'": lambda engine, *_: engine.mark("day"),
}


def make(rank: int):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()


def contents(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.mark.parametrize("called", REFUSED)
def test_what_changes_or_saves_the_run_is_refused(tmp_path, called):
    def rank(group):
        model, optimizer = make(group.rank())
        with attach(
            model, optimizer, {"algorithm": LOCAL, "bucket_bytes": 32}, process_group=group
        ) as engine:
            step(model, optimizer)
            before = contents(model)
            with engine.averaged():
                mean = contents(model)
                with engine.averaged(), pytest.raises(UsageError) as refused:
                    REFUSED[called](engine, optimizer, tmp_path)
                assert torch.equal(contents(model), mean)
                with pytest.raises(UsageError):  # also when the inner one has ended
                    REFUSED[called](engine, optimizer, tmp_path)
            return str(refused.value), torch.equal(contents(model), before), not engine.closed

    for said, came_back, goes_on in simulate(rank, 3):
        assert called in said
        assert "inside `with engine.averaged():`" in said
        assert "leave averaged() first" in said
        assert "Lightning holds the mean until its callbacks' on_validation_end is over" in said
        assert ("torch.save(model.state_dict(), …) saves the mean model" in said) == (
            called in ("state_dict()", "run_state_dict()", "checkpoint.save()")
        )
        assert came_back
        assert goes_on
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_not_loaded_into_the_mean(tmp_path):
    def rank(group):
        model, optimizer = make(group.rank())
        with attach(model, optimizer, {"algorithm": LOCAL}, process_group=group) as engine:
            saved = contents(model)
            checkpoint.save(engine, tmp_path)
            step(model, optimizer)
            before = contents(model)
            with engine.averaged(), pytest.raises(UsageError, match=r"checkpoint\.load\(\) inside"):
                checkpoint.load(engine, tmp_path)
            assert torch.equal(contents(model), before)
            checkpoint.load(engine, tmp_path)
            return torch.equal(contents(model), saved) and engine.step == 0

    assert simulate(rank, 3) == [True] * 3


def test_an_engine_that_ends_meanwhile_gives_back_everything():
    def rank(group):
        model, optimizer = make(group.rank())
        before = contents(model)
        engine = attach(model, optimizer, {"algorithm": LOCAL}, process_group=group)
        with pytest.raises(ZeroDivisionError), engine, engine.averaged():
            1 / 0  # noqa: B018
        assert engine.closed
        step(model, optimizer)
        return not torch.equal(contents(model), before), len(model._forward_pre_hooks)

    assert simulate(rank, 3) == [(True, 0)] * 3


def test_an_engine_whose_block_ends_before_averaged_is_left_gives_back_everything():
    def rank(group):
        model, optimizer = make(group.rank())
        engine = attach(model, optimizer, {"algorithm": LOCAL}, process_group=group)
        mean = engine.averaged()
        with pytest.raises(UsageError, match=r"close\(\) inside"), engine:
            mean.__enter__()
        mean.__exit__(None, None, None)
        return engine.closed, len(model._forward_pre_hooks)

    assert simulate(rank, 3) == [(True, 0)] * 3


@pytest.mark.parametrize("algorithm", ["bsp", "bytegrad", LOCAL])
def test_gradients_of_an_evaluation_belong_to_no_step(algorithm):
    """As of inputs that are made to mislead the mean model; nor does a phase begin there."""

    def rank(group, attacks):
        model, optimizer = make(group.rank())
        phases = [{"after_steps": 3, "algorithm": "powersgd"}] if algorithm == "bsp" else []
        config = {"algorithm": algorithm, "bucket_bytes": 32, "phases": phases}
        runs = []
        with attach(model, optimizer, config, process_group=group) as engine:
            for _ in range(6):
                step(model, optimizer)
                with engine.averaged():
                    if attacks:
                        inputs = torch.ones(4, 2, requires_grad=True)
                        model(inputs).square().mean().backward()
                        assert inputs.grad.any()
                    runs.append(engine.algorithm.name)
        return contents(model), runs, engine.statistics["synchronisations"]

    left, attacked = (simulate(lambda group, does=does: rank(group, does), 3) for does in (False, True))
    for one, other in zip(left, attacked, strict=True):
        assert torch.equal(one[0], other[0])
        assert one[1:] == other[1:]
