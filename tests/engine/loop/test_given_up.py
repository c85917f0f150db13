"""A rank is found to be lost in the middle of a backward: those who are left go on when it has ended."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from relaxcomm import UsageError
from relaxcomm.engine.loop.given_up import GivenUpSteps
from relaxcomm.errors import RankLostError
from tests.engine.harness import in_process, values
from tests.engine.test_failed_backward import Fails

LOST_AT = 2


class Model(nn.Module):
    """Three buckets, of which the first layer's may fail to come."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x, fails=False):
        first, second, third = self.layers
        return third(torch.tanh(second(Fails.apply(torch.tanh(first(x)), fails))))


class Losing:
    """A rank that trains, and finds when first gradients arrive that another is lost.

    Args:
        world: where it trains.
        can_go_on: with the model of another rank, which it gets in the place of its own.
    """

    def __init__(self, world, *, can_go_on: bool = True) -> None:
        self.can_go_on = can_go_on
        self.went_on: list[bool] = []  # whether in a backward
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.engine = world.attach(self.model, self.optimizer, {"algorithm": "bsp", "bucket_bytes": 80})
        self.loop = self.engine._session.loop
        self.end_of_backward = self.engine._session.hooks.end_of_backward
        self.loop.given_up = GivenUpSteps(self, self.end_of_backward)

    def go_on(self, error: RankLostError, *, in_step: bool) -> None:
        if not self.can_go_on:
            raise error
        self.went_on.append(self.end_of_backward.is_awaited)
        self.model.load_state_dict({name: one + 1 for name, one in self.model.state_dict().items()})
        self.loop.go_on_with(self.loop.step, self.loop.step.bound.clock.step + in_step, 0)

    def catch_up(self, step: int) -> None:
        pass

    def lose(self, indices: list[int]) -> None:
        raise RankLostError("rank 7 is lost")

    def train(self, *, fails: bool = False) -> None:
        step, ready = self.loop.step, self.loop.step.ready
        for index in range(4):
            is_lost = index == LOST_AT
            self.optimizer.zero_grad()
            step.ready = self.lose if is_lost else ready
            self.model(torch.ones(2, 4), fails and is_lost).square().mean().backward()
            before = values(self.model)
            self.optimizer.step()
            assert (values(self.model) == before).all() == is_lost, "a step that is given up moves nothing"


def going_on(world):
    rank = Losing(world)
    with rank.engine:
        rank.train()
    return rank.went_on, rank.engine.step


def test_the_model_is_replaced_after_its_end():
    assert in_process(going_on, 2) == [([False], 4)] * 2


def keeping_gradients(world, ranks):
    """Some ranks keep tensors of their own, in which they want to find their gradients."""
    rank = Losing(world)
    rank.optimizer.param_groups[0]["momentum"] = 0.9
    parameters = list(rank.model.parameters())
    own = [torch.zeros_like(parameter) for parameter in parameters]
    if world.rank in ranks:
        rank.optimizer.zero_grad = partial(rank.optimizer.zero_grad, set_to_none=False)
        for parameter, tensor in zip(parameters, own, strict=True):
            parameter.grad = tensor
    with rank.engine:
        rank.train()
        are_own = [parameter.grad is tensor for parameter, tensor in zip(parameters, own, strict=True)]
        assert are_own == [world.rank in ranks] * len(own)
    return values(rank.model)


@pytest.mark.parametrize("ranks", [(), (0,), (0, 1, 2)])
def test_a_momentum_moves_nothing_whoever_keeps_gradients(ranks):
    first, *others = in_process(keeping_gradients, 3, ranks)
    assert all((other == first).all() for other in others)


def ending(world):
    rank = Losing(world, can_go_on=False)
    with pytest.raises(RankLostError, match="rank 7"):
        rank.train()
    rank.engine.close(average=False)
    return rank.model.layers[0].weight.grad


def test_a_rank_that_cannot_go_on_hears_of_it_at_once():
    assert in_process(ending, 2) == [None] * 2  # the first layer's gradient comes last


def failing(world):
    rank = Losing(world)
    with pytest.raises(MemoryError):
        rank.train(fails=True)
    with pytest.raises(UsageError, match="the last backward did not end"):
        rank.optimizer.step()
    rank.engine.close(average=False)
    return rank.went_on


def test_a_backward_that_fails_then_is_refused_as_any_that_fails():
    assert in_process(failing, 2) == [[]] * 2


def giving_up(world, by_parts):
    """How far a step moves that is given up in the first of its two backwards."""
    rank = Losing(world)
    forward = rank.model.forward if by_parts else rank.model
    step, ready = rank.loop.step, rank.loop.step.ready
    for backward in range(2):
        step.ready = ready if backward else rank.lose
        forward(torch.ones(2, 4)).square().mean().backward()
    before = values(rank.model)
    rank.optimizer.step()
    moved = abs(values(rank.model) - before).max()
    rank.engine.close(average=False)
    return moved


@pytest.mark.parametrize("by_parts", [False, True])
def test_later_backwards_of_the_step_move_nothing_either(by_parts):
    assert in_process(giving_up, 2, by_parts) == [0.0] * 2
