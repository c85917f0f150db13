"""A backward that raised an error, and what goes on after it."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from relaxcomm import UsageError
from tests.engine.harness import in_process, on_gloo, values


class Fails(torch.autograd.Function):
    """Passes a tensor on; its backward fails where that is asked for."""

    @staticmethod
    def forward(context, x, fails):
        context.fails = fails
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if context.fails:
            raise MemoryError("out of memory")
        return gradient, None


class Model(nn.Module):
    """Its last layer has gradients, and may be on its way, when the first one fails."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x, fails=False):
        return self.second(Fails.apply(torch.tanh(self.first(x)), fails))


def failing(world, algorithm, loads, how="__call__", fails_at=3, bucket_bytes=20):
    """How many steps, and the parameters at the end or what was said to the batch after the failed one."""
    torch.manual_seed(0)
    model = Model()
    compute = getattr(model, how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": bucket_bytes}) as engine:
        for step in range(7):
            x, saved = torch.randn(8, 3, generator=draw), engine.run_state_dict()
            for fails in (True, False) if step == fails_at else (False,):
                optimizer.zero_grad()
                try:
                    compute(x, fails).square().mean().backward()
                    optimizer.step()
                except MemoryError:
                    if loads:
                        engine.load_run_state_dict(saved)
                except UsageError as error:
                    steps = engine.statistics["steps"]
                    engine.close(average=False)
                    return steps, str(error)
        return engine.statistics["steps"], values(model).tolist()


ALGORITHMS = [
    "bsp",
    "topk_sgd",
    "delayed_sgd",
    {"name": "selsync", "threshold": 0.1, "aggregate": "gradients"},
    "selsync",
]


WAYS = ("__call__", "forward")  # the second does not tell that a batch begins


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_a_state_that_all_load_lets_the_run_go_on(algorithm, how):
    assert in_process(failing, 3, algorithm, True, how) == in_process(failing, 3, algorithm, True, how, None)


@pytest.mark.ranks
def test_a_state_that_all_load_lets_the_run_go_on_on_gloo():
    found = on_gloo(failing, 3, "bsp", True)
    expected = in_process(failing, 3, "bsp", True, "__call__", None)
    for (steps, ended), (wanted_steps, wanted) in zip(found, expected, strict=True):
        assert steps == wanted_steps
        assert ended == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("fails_at", [0, 3])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_one_worker_alone_goes_on_as_without_an_engine(algorithm, how, fails_at):
    found = in_process(failing, 1, algorithm, False, how, fails_at)
    assert found == in_process(failing, 1, algorithm, False, how, None)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("bucket_bytes", [20, 1 << 20])
@pytest.mark.parametrize("algorithm", ["bsp", "topk_sgd"])
def test_peers_wait_otherwise_and_the_error_says_what_to_do(algorithm, bucket_bytes, how):
    for steps, message in in_process(failing, 3, algorithm, False, how, 3, bucket_bytes):
        assert steps == 3
        assert "load a state on all (engine.load_run_state_dict)" in message


class Branched(Model):
    """Uses a layer more where it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Linear(3, 1)

    def forward(self, x, fails=False, branches=True):
        return super().forward(x, fails) + (self.side(x) if branches else 0)


def failing_first(world, fails):
    """Bytes sent before the last gradient of each backward after a first one that may fail, and the end."""
    torch.manual_seed(0)
    model = Branched()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw, early = torch.Generator().manual_seed(world.rank), []
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 20}) as engine:
        if fails:
            saved = engine.run_state_dict()
            with suppress(MemoryError):
                model(torch.ones(8, 3), True).sum().backward()
            engine.load_run_state_dict(saved)
        for step in range(3):
            before = engine.statistics["bytes_sent"]
            handle = model.first.weight.register_hook(
                lambda _, before=before: early.append(engine.statistics["bytes_sent"] - before)
            )
            optimizer.zero_grad()
            out = model(torch.randn(8, 3, generator=draw), branches=step > 0 or world.rank != 1)
            out.square().mean().backward()
            optimizer.step()
            handle.remove()
    return early, values(model).tolist()


def test_a_first_backward_that_fails_is_forgotten():
    """The next one shows what comes and how often, which need not be the same on all ranks."""
    found = in_process(failing_first, 3, True)
    assert found == in_process(failing_first, 3, False)
    assert all(early[2] > 0 for early, _ in found)


def failing_unsynchronised(world, then, fails):
    """Like `failing`, under no_sync(), on one rank, after a first gradient."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, "bsp") as engine:
        for step in range(4):
            x = torch.randn(8, 3, generator=draw)
            if step == 2 and fails and world.rank == 0:
                with engine.no_sync(), suppress(MemoryError):
                    model(x, True).sum().backward()
            optimizer.zero_grad()
            if then == "evaluates":
                torch.no_grad()(model)(x)
            elif then == "accumulates":
                with engine.no_sync():
                    model(-x).sum().backward()
            model(x).square().mean().backward()
            optimizer.step()
        return engine.statistics["steps"], values(model).tolist()


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("then", ["trains", "evaluates", "accumulates"])
def test_one_that_fails_under_no_sync_is_forgotten(then, size):
    found = in_process(failing_unsynchronised, size, then, True)
    assert found == in_process(failing_unsynchronised, size, then, False)


def stepping(world, stands: bool):
    """What is said to a step right after a failed backward, whose first gradients were not told of yet."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, "local_sgd" if stands else "bsp") as engine:
        for step in range(3):
            loss = model.forward(torch.ones(1, 3), fails=step == 2).sum()
            with suppress(MemoryError):
                loss.backward()
            try:
                optimizer.step()
            except UsageError as error:
                engine.close(average=False)
                return str(error)
        return ""


def test_a_step_after_a_failed_backward_is_refused_where_gradients_are_exchanged():
    assert in_process(stepping, 3, True) == [""] * 3
    assert all("the last backward did not end" in message for message in in_process(stepping, 3, False))


def passing(world, how):
    """Loops that are right, and in which the ends of backwards are told late, twice or not in between."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 20}) as engine:
        for _ in range(4):
            x = torch.randn(8, 3, generator=draw)
            optimizer.zero_grad()
            if how == "accumulates":
                with engine.no_sync():
                    model.forward(x).sum().backward()
                    model.forward(-x).square().sum().backward()
            elif how == "twice":
                model.forward(-x).square().sum().backward()
            elif how == "penalty":
                x.requires_grad_()
                slope = torch.autograd.grad(model.forward(x).sum(), x, create_graph=True)[0]
                slope.square().sum().backward()
            elif how == "a failed look":
                with suppress(MemoryError):
                    torch.autograd.grad(model.forward(x.requires_grad_(), True).sum(), x)
            if how == "retained":
                loss = model.forward(x).square().sum()
                loss.backward(retain_graph=True)
                loss.backward()
            elif how == "checkpoint":
                out = checkpoint(model.forward, x.requires_grad_(), use_reentrant=False)
                out.square().sum().backward()
            else:
                part = model.second if how == "a part" else model.forward
                part(x[:, :1].expand(8, 4) if how == "a part" else x).square().sum().backward()
            optimizer.step()
        return engine.statistics["steps"], values(model).tolist()


HOW = ("accumulates", "twice", "penalty", "a failed look", "retained", "checkpoint", "a part")


@pytest.mark.parametrize("how", HOW)
def test_loops_that_are_right_are_not_refused(how):
    found = in_process(passing, 2, how)
    assert [steps for steps, _ in found] == [4, 4]
    assert found[0][1] == found[1][1]
