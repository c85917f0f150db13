"""What optimizers' groups hold is what one rank's hold where it is copied, and that rank's own stays."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from relaxcomm import attach, simulate
from relaxcomm.step.copied_states import begin_as
from tests.engine.harness import values
from tests.models import take_step

RANKS = 3


def copy(model, optimizer, group):
    """All take what rank 0 has."""
    with attach(model, optimizer, "local_sgd", process_group=group) as engine:
        for item in begin_as(engine._session.replica, engine._session.world, 0, (), settings=True)[0]:
            item.tensor.copy_(engine._session.world.gather(item.tensor.clone(), "a copy")[0])


def adam_with_tensors(parameters):
    return torch.optim.AdamW(
        parameters, lr=0.01, betas=(torch.tensor(0.9), torch.tensor(0.99)), foreach=False
    )


def adam_with_tensors_in_a_list(parameters):
    optimizer = adam_with_tensors(parameters)
    optimizer.param_groups[0]["betas"] = list(optimizer.param_groups[0]["betas"])
    return optimizer


WAYS = {
    "a switch": {"algorithm": "local_sgd", "phases": [{"after_steps": 4, "algorithm": "bsp"}]},
    "join()": {"algorithm": "bsp"},
    "the drift guard": {"algorithm": "bsp", "drift_guard": {"every_steps": 5, "policy": "average"}},
}


@pytest.mark.parametrize("make", [adam_with_tensors, adam_with_tensors_in_a_list])
@pytest.mark.parametrize("way", WAYS)
def test_betas_that_are_tensors_stay_what_they_are(way, make):
    def worker(group):
        torch.manual_seed(0)
        model, data = nn.Linear(4, 2), torch.Generator().manual_seed(group.rank())
        optimizer = make(model.parameters())

        ends_alone = way == "join()"
        with attach(model, optimizer, WAYS[way], process_group=group) as engine:
            with engine.join() if ends_alone else nullcontext():
                for step in range(7 + ends_alone * group.rank()):
                    take_step(model(torch.randn(8, 4, generator=data)).square().mean(), optimizer)
                    if way == "the drift guard" and step == 2 and group.rank() == 1:
                        model.weight.data.add_(0.1)
            engine.close(average=False)
        return values(model), [float(one) for one in optimizer.param_groups[0]["betas"]]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "replicas had drifted|.*hold different values")
        (first, betas), *others = simulate(worker, RANKS)
    assert betas == pytest.approx([0.9, 0.99])
    for other, theirs in others:
        assert (other == first).all()
        assert theirs == betas


def test_a_dict_of_a_group_that_an_optimizer_holds_too_stays_the_same():
    def worker(group):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stats = optimizer.param_groups[0]["stats"] = {"seen": group.rank(), "norms": [torch.tensor(1.0)]}
        norm = stats["norms"][0]
        copy(model, optimizer, group)
        held = optimizer.param_groups[0]["stats"]
        return held is stats, held["norms"][0] is norm, held["seen"]

    assert simulate(worker, RANKS) == [(True, True, 0)] * RANKS


def test_groups_that_share_a_dict_on_all_ranks_share_it_still():
    def worker(group):
        model = nn.Linear(4, 2)
        shared = [torch.tensor([2.0, 3.0])] if group.rank() == 0 else {"cannot": "be filled"}
        optimizer = torch.optim.SGD([{"params": [one], "own": shared} for one in model.parameters()])
        copy(model, optimizer, group)
        first, second = (one["own"] for one in optimizer.param_groups)
        return first is second, [one.tolist() for one in first]

    assert simulate(worker, RANKS) == [(True, [[2.0, 3.0]])] * RANKS


def test_a_default_is_not_filled_with_what_a_group_has_instead():
    def worker(group):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99))
        optimizer.defaults["more"] = optimizer.param_groups[0]["more"] = [1, 2]
        if group.rank() == 0:
            optimizer.param_groups[0]["more"] = [3]
        copy(model, optimizer, group)
        return optimizer.param_groups[0]["more"], optimizer.defaults["more"]

    assert simulate(worker, RANKS) == [([3], [1, 2])] * RANKS


def test_groups_that_share_a_list_on_one_rank_do_not_fill_it_twice():
    def worker(group):
        model = nn.Linear(4, 2)
        shared = [0.9, 0.99]
        groups = [{"params": [one], "betas": shared} for one in model.parameters()]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        if group.rank() == 0:  # whose settings all take
            optimizer.param_groups[1]["betas"] = [0.5, 0.8]
        copy(model, optimizer, group)
        return [one["betas"] for one in optimizer.param_groups], shared

    for betas, shared in simulate(worker, RANKS):
        assert betas == [[0.9, 0.99], [0.5, 0.8]]
        assert shared == [0.9, 0.99], "the user's own"


def test_names_in_a_group_stay_those_of_its_parameters():
    def worker(group):
        model = nn.Linear(4, 2)
        named = list(model.named_parameters())
        optimizer = torch.optim.SGD(named[:: -1 if group.rank() == 1 else 1])
        copy(model, optimizer, group)
        (held,) = optimizer.param_groups
        return [dict(named)[name] is p for name, p in zip(held["param_names"], held["params"], strict=True)]

    assert simulate(worker, RANKS) == [[True, True]] * RANKS


def test_groups_without_parameters_are_told_apart_by_their_optimizer():
    """In any order of optimizers, each of which begins with the empty groups."""

    def worker(group):
        model = nn.Linear(4, 2)
        rates = (0.1, 0.2, 0.3, 0.4) if group.rank() == 0 else (1.0,) * 4
        pair = [
            torch.optim.SGD(
                [
                    {"params": [], "lr": rates[at]},
                    {"params": [], "lr": rates[at + 1]},
                    {"params": [p], "lr": 1},
                ],
                lr=rates[at],
            )
            for at, p in ((0, model.weight), (2, model.bias))
        ]
        copy(model, pair[:: -1 if group.rank() == 1 else 1], group)
        return [([one["lr"] for one in each.param_groups[:2]], each.defaults["lr"]) for each in pair]

    assert simulate(worker, RANKS) == [[([0.1, 0.2], 0.1), ([0.3, 0.4], 0.3)]] * RANKS
