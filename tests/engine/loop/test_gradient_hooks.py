"""Gradients that are told of one by one, or with the one that is waited for."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from relaxcomm.engine.loop.gradient_hooks import GradientHooks
from relaxcomm.replica.named_parameters import named_parameters, trainable
from tests.engine.harness import World, in_process
from tests.engine.situations import Checkpointed


class Branches(nn.Module):
    """Whose gradients come in another order, or not at all, as the caller says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, inputs, order):
        for index in order:
            inputs = self.layers[index](inputs).tanh()
        return inputs


def hooks_on(model: nn.Module, told: list[list[int]]) -> GradientHooks:
    return GradientHooks(trainable(named_parameters(model)), told.append)


def chain() -> nn.Sequential:
    """Gradients come in the order in which `trainable` names the parameters: the last first."""
    return nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(4)))


def test_each_is_told_of_until_they_are_collected():
    model, told = chain(), []
    hooks = hooks_on(model, told)
    model(torch.ones(1, 2)).sum().backward()
    assert told == [[0], [1], [2], [3]]
    hooks.collect()
    model(torch.ones(1, 2)).sum().backward()
    assert told[4:] == [[0]], "the first one tells that a backward goes on"
    assert hooks.tell_each() == [1, 2, 3]
    assert hooks.tell_each() == []


def test_one_that_is_frozen_tells_when_it_is_trained_again():
    model, told = chain(), []
    parameters = trainable(named_parameters(model))
    model[2].requires_grad_(False)
    hooks = GradientHooks(parameters, told.append)
    assert not model[2].weight.requires_grad
    for trained, expected in ((False, [[0], [2], [3]]), (True, [[0], [1], [2], [3]])):
        model[2].requires_grad_(trained)
        model(torch.ones(1, 2)).sum().backward()
        assert told == expected
        told.clear()
    hooks.remove()


@pytest.mark.parametrize("collects", [False, True])
def test_a_hook_that_returns_something_is_told_so_by_torch(collects):
    model, told = chain(), []
    returning = [
        p.register_post_accumulate_grad_hook(lambda p: p.grad.clamp_(-1, 1)) for p in model.parameters()
    ]
    hooks = hooks_on(model, told)
    if collects:
        hooks.collect()
    with pytest.raises(RuntimeError, match="should return None"):
        model(torch.ones(1, 2)).sum().backward()
    for handle in returning:
        handle.remove()
    model(torch.ones(1, 2)).sum().backward()
    assert [index for indices in (*told, hooks.tell_each()) for index in indices] == [0, 1, 2, 3]


def test_the_awaited_come_at_once_with_those_before_them():
    model, told = chain(), []
    hooks = hooks_on(model, told)
    hooks.await_also([2])
    hooks.await_also([2])
    hooks.collect()
    model(torch.ones(1, 2)).sum().backward()
    assert told == [[0], [1, 2]]
    assert hooks.tell_each() == [3]
    model(torch.ones(1, 2)).sum().backward()
    assert told[2:] == [[0], [1], [2], [3]], "an awaited gradient is told of once"
    hooks.remove()
    model(torch.ones(1, 2)).sum().backward()
    assert len(told) == 6


def test_the_first_one_may_have_the_others_collected():
    model, told = chain(), []

    def tell(indices: list[int]) -> None:
        told.append(indices)
        hooks.collect()

    hooks = GradientHooks(trainable(named_parameters(model)), tell)
    hooks.await_also([3])
    model(torch.ones(1, 2)).sum().backward()
    assert told == [[0], [1, 2, 3]]


def test_hooks_that_the_user_hangs_later_run_first():
    """Then ours are behind them, so that nothing waits for the next gradient any more."""
    ran, told = [], []
    parameters = trainable(named_parameters(model := chain()))
    hooks = GradientHooks(parameters, lambda indices: told.append((indices, list(ran))))
    for index, item in enumerate(parameters):
        item.parameter.register_post_accumulate_grad_hook(lambda p, index=index: ran.append(index))
    model(torch.ones(1, 2)).sum().backward()
    assert told == [([], []), ([0], [0]), ([1], [0, 1]), ([2], [0, 1, 2])]
    assert hooks.tell_each() == [3]
    hooks.await_also(range(4))
    ran.clear()
    told.clear()
    model(torch.ones(1, 2)).sum().backward()
    assert told == [([0], [0]), ([1], [0, 1]), ([2], [0, 1, 2]), ([3], [0, 1, 2, 3])]


ORDERS = [(0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (2, 0, 4, 1, 5, 3), (3, 5), (0, 1, 2, 3, 4, 5)] * 3


def exchanged_early(world: World, orders):
    """Bytes that were sent before the last gradient of each backward, and the parameters at the end."""
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    early = []
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 1024}) as engine:
        for step, order in enumerate(orders):
            before = engine.statistics["bytes_sent"]
            first = model.layers[order[0]]
            handle = first.weight.register_hook(
                lambda gradient, before=before: early.append(engine.statistics["bytes_sent"] - before)
            )
            torch.manual_seed(100 * step + world.rank)
            optimizer.zero_grad()
            model(torch.randn(4, 8), order).square().mean().backward()
            optimizer.step()
            handle.remove()
    return early, [parameter.detach().clone() for parameter in model.parameters()]


def by_hand(size: int, orders):
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, order in enumerate(orders):
        optimizer.zero_grad()
        for rank in range(size):
            torch.manual_seed(100 * step + rank)
            (model(torch.randn(4, 8), order).square().mean() / size).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_orders_that_change_are_averaged_like_any():
    for _, parameters in in_process(exchanged_early, 3, ORDERS):
        for ours, theirs in zip(parameters, by_hand(3, ORDERS), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_buckets_leave_before_the_last_gradient():
    for early, _ in in_process(exchanged_early, 3, [ORDERS[0]] * 4):
        assert early[0] == 0, "the first backward shows the order"
        assert 0 < early[1] == early[2] == early[3]


@pytest.mark.parametrize("order", [(1, 2, 0, 5, 3, 4), ORDERS[2]])
def test_an_order_that_changes_for_good_is_learned(order):
    orders = [ORDERS[0]] * 3 + [order] * 3
    for early, _ in in_process(exchanged_early, 3, orders):
        assert early[4] == early[5] > 0


BOUND, HUNG_AT = 1e-3, 2


def clip(parameter: torch.Tensor) -> None:
    parameter.grad.clamp_(-BOUND, BOUND)


def clipped(world: World, hung: str):
    """Each parameter's gradient is bounded from a step on, by a hook that is hung in that step."""
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def hang(*_):
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(clip)

    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 300}) as engine:
        inside = {"before no_sync": engine.no_sync, "before averaged": engine.averaged}.get(hung)
        for step in range(4):
            optimizer.zero_grad()
            if step == HUNG_AT and (inside or hung == "before forward"):
                hang()
            if inside:
                with inside():
                    model.forward(torch.zeros(4, 8), ORDERS[0]).mul(0).sum().backward()
            torch.manual_seed(100 * step + world.rank)
            outputs = (model.forward if inside else model)(torch.randn(4, 8), ORDERS[0])
            if step == HUNG_AT and hung == "before backward":
                hang()
            elif step == HUNG_AT and hung == "in backward":
                outputs.register_hook(hang)
            outputs.square().mean().backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def clipped_by_hand(size: int):
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        means = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for rank in range(size):
            optimizer.zero_grad()
            torch.manual_seed(100 * step + rank)
            model(torch.randn(4, 8), ORDERS[0]).square().mean().backward()
            for mean, parameter in zip(means, model.parameters(), strict=True):
                if step >= HUNG_AT:
                    clip(parameter)
                mean += parameter.grad / size
        for mean, parameter in zip(means, model.parameters(), strict=True):
            parameter.grad = mean
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


HUNG = ("before forward", "before no_sync", "before averaged", "before backward", "in backward")


@pytest.mark.parametrize("hung", HUNG)
def test_what_the_users_hooks_leave_is_exchanged_whenever_they_were_hung(network, hung):
    """Also where gradients are large, and multiplied as soon as they are there."""
    for parameters in network(clipped, 3, hung):
        for ours, theirs in zip(parameters, clipped_by_hand(3), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def clipped_twice(world: World, model: nn.Module, inputs: torch.Tensor):
    """The mean of what ranks have had for gradients, by hand and exchanged."""
    model = deepcopy(model)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(clip)
    expected = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for one in inputs:
        model(one).square().mean().backward()
        for mean, parameter in zip(expected, model.parameters(), strict=True):
            mean += parameter.grad / world.size
        model.zero_grad()
    with world.attach(model, None, {"algorithm": "bsp", "bucket_bytes": 300}):
        for _ in range(2):
            model.zero_grad()
            model(inputs[world.rank]).square().mean().backward()
        return expected, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("reentrant", [False, True])
def test_so_it_is_of_a_block_that_is_checkpointed_twice(reentrant):
    inputs = torch.randn(3, 4, 6, dtype=torch.float64)
    for expected, found in in_process(clipped_twice, 3, Checkpointed(reentrant, times=2), inputs):
        torch.testing.assert_close(found, expected)
