"""What is put back when the mean model was evaluated, and what others have written meanwhile, which stays."""

from __future__ import annotations

import weakref
from functools import partial

import pytest
import torch
from torch import nn

from relaxcomm import Algorithm, Rule, attach, simulate
from relaxcomm.primitives import deltas, every, server
from relaxcomm.step import model_means
from relaxcomm.step.kept_replica import kept
from relaxcomm.tensors.buckets import Bucket
from tests.engine.test_kept_buffers import train

LOCAL = {"name": "local_sgd", "steps": 4}


class Recorded(nn.Module):
    """Has statistics of a forward and of its own, a best loss that begins high, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.register_buffer("level", torch.zeros(()))
        self.register_buffer("best", torch.tensor(1e9))
        self.register_buffer("least", torch.tensor(float("inf")))
        self.register_buffer("evaluations", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("bests", torch.zeros(2))

    def forward(self, x):
        return self.norm(self.layer(x))


def trained(group, algorithm, evaluate):
    """What the model holds before, inside before and after `evaluate`, and afterwards."""
    torch.manual_seed(0)
    model = Recorded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = {"algorithm": algorithm, "bucket_bytes": 32}
    with attach(model, optimizer, config, process_group=group) as engine:
        train(model, optimizer, group.rank(), steps=2)
        model.level.fill_(group.rank() + 1.0)
        model.bests.fill_(group.rank() + 1.0)
        found = [contents(model)]
        with engine.averaged():
            found.append(contents(model))
            evaluate(model, engine)
            found.append(contents(model))
        return [*found, contents(model)]


def contents(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(found, wanted):
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=0, msg=name)


def record(model, engine):
    model.best.copy_(torch.minimum(model.best, torch.tensor(0.25)))
    model.least.data.copy_(torch.tensor(0.5))
    model.evaluations = model.evaluations + 1
    model.count += 1
    model.level.add_(1.0)
    model.bests[1] = 0.5


@pytest.mark.parametrize("algorithm", ["bsp", LOCAL], ids=["bsp", "local_sgd"])
def test_what_is_written_into_a_buffer_stays_and_all_else_comes_back(algorithm):
    written = ("best", "least", "evaluations", "count", "level")
    for before, _, last, after in simulate(partial(trained, algorithm=algorithm, evaluate=record), 3):
        assert_equal(after, {name: last[name] for name in written})
        kept = {name: one for name, one in before.items() if name not in written}
        assert_equal(after, kept | {"bests": torch.stack([before["level"], torch.tensor(0.5)])})
        assert [after[name].item() for name in written] == [0.25, 0.5, 1, 1, 3]


def train_again(model, engine):
    """A throw-away optimizer trains the mean model."""
    with engine.no_sync():
        model(torch.randn(8, 3)).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()


def swap_out_and_in(model, engine):
    """An average of weights and buffers is evaluated in the model's place, as Lightning does."""
    shown = contents(model)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.copy_(torch.zeros_like(tensor))
    for tensor, one in zip(model.state_dict().values(), shown.values(), strict=True):
        tensor.data.copy_(one)


def convert(model, engine):
    """As to save it from the host: every buffer is another tensor afterwards."""
    model.double().float()


def nest(model, engine):
    with engine.averaged():
        pass


def load(model, engine):
    moved = {name: one + 5 for name, one in contents(model).items() if "." in name}
    model.load_state_dict(moved, strict=False)


@pytest.mark.parametrize("evaluate", [train_again, swap_out_and_in, convert, nest, load])
def test_a_replica_comes_back(evaluate):
    for before, inside, last, after in simulate(partial(trained, algorithm=LOCAL, evaluate=evaluate), 3):
        assert not torch.equal(inside["norm.running_mean"], before["norm.running_mean"])
        moves = evaluate in (train_again, load)
        assert torch.equal(inside["norm.running_mean"], last["norm.running_mean"]) != moves
        assert_equal(after, before)


def test_it_comes_back_where_two_services_hold_it():
    """The means of both stand in the replica's place, the last one for as long as it is evaluated."""
    shared = partial(Rule, payload=deltas(), exchange=server(staleness=2))
    rules = tuple(shared(trigger=every(steps=steps)) for steps in (2, 3))
    ranks = simulate(partial(trained, algorithm=Algorithm(rules), evaluate=lambda *_: None), 3)
    for before, _, last, after in ranks:
        assert not torch.equal(last["layer.weight"], before["layer.weight"])
        assert_equal(last, {"layer.weight": ranks[0][1]["layer.weight"]})
        assert_equal(after, before)


def test_it_comes_back_after_an_error():
    def rank(group):
        model = Recorded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with attach(model, optimizer, {"algorithm": LOCAL}, process_group=group) as engine:
            model.level.fill_(group.rank())
            with pytest.raises(ZeroDivisionError), engine.averaged():
                1 / model.best.fill_(0.0).int().item()
            return model.level.item(), model.best.item()

    assert simulate(rank, 3) == [(rank, 0.0) for rank in range(3)]


class Watched(nn.Module):
    """Another module holds a norm's statistics, and the model names them by it."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = nn.Module()
        self.norm = nn.BatchNorm1d(3)
        self.watch.register_buffer("mean", self.norm.running_mean)

    def forward(self, x):
        return self.norm(x)


def test_statistics_come_back_by_whichever_name():
    def rank(group):
        model = Watched()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with attach(model, optimizer, {"algorithm": LOCAL}, process_group=group) as engine:
            train(model, optimizer, group.rank(), steps=2)
            before = contents(model)
            with engine.averaged(), torch.no_grad():
                model(torch.randn(8, 3))
            assert_equal(contents(model), before)

    simulate(rank, 3)


def test_a_mean_is_let_go_of_as_soon_as_it_is_there(monkeypatch):
    """So that averaged() holds one model beside the one that is trained, and not two."""
    most = []
    gather = Bucket.gather

    def counted(bucket, out):
        most.append(sum(one() is not None for one in made))
        return gather(bucket, out)

    def rank(group):
        model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        config = {"algorithm": LOCAL, "bucket_bytes": 256}
        with attach(model, optimizer, config, process_group=group) as engine:
            bound = engine._session.bound
            means = model_means.finite_means(bound)
            made.extend(weakref.ref(mean) for _, mean in means)
            monkeypatch.setattr(Bucket, "gather", counted)
            with kept(bound, means):
                assert not means
            monkeypatch.undo()

    made: list[weakref.ref[torch.Tensor]] = []
    simulate(rank, 1)
    assert most == [4, 3, 2, 1]
