"""Parameters that some ranks, or all, did not use in a step: nothing that was sent for them is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from relaxcomm import Algorithm, Rule, attach, simulate
from relaxcomm.plugin import AllReduce, Exchange, Stage, frozen
from relaxcomm.primitives import all_reduce, gradients
from tests.engine.sharded import RANKS, shard
from tests.ranks import run_ranks

STEPS = 40
EIGHT_BITS = {
    "payload": "gradients",
    "exchange": "scatter_gather",
    "compressor": {"quantize": {"bits": 8}},
    "delay": 1,
}


PARTS = {"error_feedback": {"compressor": {"top_k": {"density": 0.1}}}}


class Experts(nn.Module):
    """One is used in the first step only, the other in each; the third never."""

    def __init__(self) -> None:
        super().__init__()
        self.seldom, self.often, self.never = (nn.Parameter(torch.zeros(8)) for _ in range(3))

    def loss(self, uses_seldom: bool) -> torch.Tensor:
        loss = 1e-3 * self.often.sum()
        return loss + self.seldom.sum() if uses_seldom else loss


def trained(group, algorithm, users=(0, 1, 2), steps=STEPS, saves_at=None):
    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    config = {"algorithm": algorithm, "bucket_bytes": 32}
    engine = attach(model, optimizer, config, process_group=group)
    for step in range(steps):
        optimizer.zero_grad()
        model.loss(step == 0 and group.rank() in users).backward()
        optimizer.step()
        if step == saves_at:
            saved = engine.state_dict()
            parameters = [p.detach().clone() for p in model.parameters()]
            engine.close()
            with torch.no_grad():
                for p, before in zip(model.parameters(), parameters, strict=True):
                    p.copy_(before)
            engine = attach(model, optimizer, config, process_group=group)
            engine.load_state_dict(saved)
    never = model.never.grad is None
    engine.close()
    return model.seldom.detach().sum().item(), model.often.detach().sum().item(), never


@pytest.mark.parametrize("users", [(0, 1, 2), (1,)], ids=str)
@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "topk_sgd", "density": 0.25},
        {"name": "dgc", "density": 0.25, "momentum": 0.0},
        {"rules": [{"payload": "gradients", "exchange": "scatter_gather", "compressor": PARTS}]},
    ],
    ids=str,
)
def test_residuals_of_what_nobody_uses_any_more_arrive(algorithm, users):
    for seldom, _, never in simulate(lambda group: trained(group, algorithm, users), 3):
        assert seldom == pytest.approx(-8 * len(users) / 3)
        assert never


def test_what_was_frozen_meanwhile_stays_as_it_is():
    def rank(group):
        model = Experts()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        config = {"algorithm": {"name": "topk_sgd", "density": 0.25}, "bucket_bytes": 32}
        with attach(model, optimizer, config, process_group=group):
            for step in range(6):
                if step == 1:
                    model.seldom.requires_grad_(False)
                    before = model.seldom.clone()
                optimizer.zero_grad()
                model.loss(step == 0).backward()
                optimizer.step()
        return (model.seldom - before).abs().sum().item()

    assert simulate(rank, 3) == [0.0] * 3


@pytest.mark.parametrize("name", ["topk_sgd", "ef21", "demo", "qadam"])
def test_what_one_rank_alone_has_frozen_and_nobody_uses_is_moved_alike(name):
    def rank(group):
        model = Experts()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        algorithm = {
            "topk_sgd": {"density": 0.25},
            "ef21": {"density": 0.25},
            "demo": {"num_kept": 1},
            "qadam": {"warmup_steps": 2},
        }[name]
        with attach(
            model,
            optimizer,
            {"algorithm": {"name": name, **algorithm}, "bucket_bytes": 32},
            process_group=group,
        ):
            for step in range(5):
                if step == 1:
                    model.seldom.requires_grad_(group.rank() != 1)
                    before = model.seldom.detach().clone()
                optimizer.zero_grad()
                (model.loss(step == 0) + step * 1e-3 * model.often[0]).backward()
                optimizer.step()
            return model.seldom.detach().clone(), before

    (first, before), *others = simulate(rank, 3)
    assert not torch.equal(first, before)
    assert all(torch.equal(other, first) for other, _ in others)


@pytest.mark.parametrize("saves_at", [None, 0])
@pytest.mark.parametrize("users", [(0, 1, 2), (1,)], ids=str)
def test_late_gradients_of_what_nobody_uses_any_more_arrive(users, saves_at):
    ranks = simulate(lambda group: trained(group, {"rules": [EIGHT_BITS]}, users, 3, saves_at), 3)
    for seldom, _, never in ranks:
        assert seldom == pytest.approx(-8 * len(users) / 3, rel=0.01)
        assert never


class Branches(nn.Module):
    """The first is used in the first step only; its gradient is large in one row, of one shard."""

    def __init__(self) -> None:
        super().__init__()
        self.seldom, self.often = nn.Linear(1, 4, bias=False), nn.Linear(1, 4, bias=False)

    def forward(self, step):
        loss = 1e-4 * self.often(torch.ones(1)).sum()
        scale = torch.tensor([1.0, 1.0, 1.0, 4.0])
        return loss + (scale * self.seldom(torch.ones(1))).sum() if step == 0 else loss


def sharded_rank(rank):
    torch.manual_seed(0)
    model = shard(Branches())
    before = model.seldom.weight.full_tensor().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    config = {"algorithm": {"name": "topk_sgd", "density": 0.1}, "timeout_seconds": 60}
    has_gradient = []
    with attach(model, optimizer, config):
        for step in range(6):
            optimizer.zero_grad()
            model(step).backward()
            optimizer.step()
            has_gradient.append(model.seldom.weight.grad is not None)
    return has_gradient, (before - model.seldom.weight.full_tensor()).tolist()


@pytest.mark.ranks
@pytest.mark.skipif(torch.__version__ < "2.9", reason="there FSDP2 itself adds up gradients over Gloo")
def test_shards_are_stepped_together():
    ranks = run_ranks(sharded_rank, RANKS)
    assert [moved for _, moved in ranks] == [[[1.0], [1.0], [1.0], [4.0]]] * RANKS
    assert all(has_gradient == ranks[0][0] for has_gradient, _ in ranks)


class Joins(nn.Module):
    """One is used in each step, the other from step 2 on."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.later = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))

    def loss(self, step: int, scale: float) -> torch.Tensor:
        loss = (step + 1) * self.always.sum()
        return scale * (loss + self.later.sum() if step >= 2 else loss)


@pytest.mark.parametrize("bucket_bytes", [32, 1024], ids=["apart", "together"])
def test_the_last_late_gradient_adds_to_the_own_of_a_step_that_sends_none(bucket_bytes):
    """`- sum_s mean_r g[r, s]`: steps 0 and 1 send gradients, a step late, and 2 and 3 average parameters."""
    late = {"payload": "gradients", "exchange": "all_reduce", "delay": 1, "active": [0, 2]}
    after = {"payload": "parameters", "exchange": "all_reduce", "active": [2, None]}

    def rank(group):
        model = Joins()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        config = {"algorithm": {"rules": [late, after]}, "bucket_bytes": bucket_bytes}
        with attach(model, optimizer, config, process_group=group):
            for step in range(4):
                optimizer.zero_grad()
                model.loss(step, group.rank() + 1.0).backward()
                optimizer.step()
        return model.always[0].item(), model.later[0].item()

    assert simulate(rank, 3) == [(-20.0, -4.0)] * 3


@frozen
class directions(Exchange):
    """That of each tensor's mean, which no flag behind them could pass."""

    facts = replace(all_reduce.facts, returns="votes", takes_divided=False)

    def run(self, cx, tensor, compressor, state):
        mean = yield AllReduce(tensor.clone(), "mean")
        layout = cx.layout_of(tensor.numel())
        parts = mean.split([shape.numel() for shape in layout.shapes])
        return torch.cat([nn.functional.normalize(part, dim=0) for part in parts])

    def stages(self, world_size, topology):
        return [Stage(AllReduce)]


def test_an_exchange_that_makes_no_mean_gets_the_entries_of_a_bucket_alone():
    algorithm = Algorithm((Rule(payload=gradients(), exchange=directions()),), name="directions")
    for found in simulate(lambda group: trained(group, algorithm, users=(1,), steps=3), 3):
        assert found == (pytest.approx(-(8**0.5)), pytest.approx(-3 * 8**0.5), True)
