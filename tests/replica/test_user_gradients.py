"""Gradients that are tensors of the training loop's own get what is exchanged, and are `.grad` again."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from torch import nn

from relaxcomm.replica.gradient_buffer import GradientBuffer
from relaxcomm.replica.user_gradients import zero_or_none
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from tests.engine.harness import in_process, on_gloo, values

ALGORITHMS = [
    *("bsp", "topk_sgd", "powersgd", "signsgd", "ef21"),
    {"name": "delayed_sgd", "delay": 2},
    {"name": "selsync", "threshold": 0.1, "aggregate": "gradients"},
]


def flat_views(model):
    """One flat buffer, as apex and DeepSpeed have it."""
    flat = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    begin = 0
    for parameter in model.parameters():
        parameter.grad = flat[begin : (begin := begin + parameter.numel())].view_as(parameter)
    return [flat]


def list_of_tensors(model):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in model.parameters()]


def numpys_memory(model):
    """In which the loop looks at its gradients without a tensor."""
    arrays = [np.zeros(parameter.shape) for parameter in model.parameters()]
    for parameter, array in zip(model.parameters(), arrays, strict=True):
        parameter.grad = torch.from_numpy(array)
    return [torch.from_numpy(array) for array in arrays]  # which torch does not know to be the same memory


def made(sizes=(3, 5, 2)):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(*sizes[:2]), nn.Tanh(), nn.Linear(*sizes[1:])).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def gradients(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def trained(world, algorithm, own, backwards=1, then=None, sizes=(3, 5, 2)):
    """Train; what is in tensors of one's own is what the optimizer steps by."""
    model, optimizer = made(sizes)
    draw = torch.Generator().manual_seed(world.rank)
    kept = own(model) if own else None
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 150}) as engine:
        for step in range(5):
            if step == 3 and then is not None:
                engine.switch(then)
            for tensor in kept or ():
                tensor.zero_()
            if not kept:
                optimizer.zero_grad()
            for last in (*[False] * (backwards - 1), True):
                x = torch.randn(4, sizes[0], generator=draw, dtype=torch.float64)
                if last:
                    model(x).square().mean().backward()
                else:
                    with engine.no_sync():
                        model(x).square().mean().backward()
            if kept:
                assert torch.equal(gradients(kept), gradients(p.grad for p in model.parameters()))
            optimizer.step()
    if kept:
        kept[0].fill_(7.0)  # they are `.grad` after close, too
        assert (next(model.parameters()).grad == 7.0).all()
    return values(model)


@pytest.mark.every_other("algorithm", "own", "backwards")
@pytest.mark.parametrize("backwards", [1, 2])
@pytest.mark.parametrize("own", [flat_views, list_of_tensors, numpys_memory])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_training_is_that_of_gradients_of_autograds(algorithm, own, backwards):
    expected = in_process(trained, 3, algorithm, None, backwards)
    for found, wanted in zip(in_process(trained, 3, algorithm, own, backwards), expected, strict=True):
        assert abs(found - wanted).max() < 1e-12


def test_a_large_gradient_that_is_exchanged_in_place():
    sizes = (400, 400, 1)  # 1.2 MiB
    expected = in_process(trained, 2, "bsp", None, 2, None, sizes)
    for own in (flat_views, list_of_tensors, numpys_memory):
        found = in_process(trained, 2, "bsp", own, 2, None, sizes)
        assert abs(found[1] - expected[1]).max() < 1e-12


def test_late_gradients_pass_by_at_a_switch():
    late = {"name": "delayed_sgd", "delay": 2}
    expected = in_process(trained, 3, late, None, 1, "bsp")
    assert abs(in_process(trained, 3, late, flat_views, 1, "bsp")[2] - expected[2]).max() < 1e-12


@pytest.mark.ranks
def test_on_gloo():
    expected, found = (on_gloo(trained, 3, "bsp", own, 2) for own in (None, flat_views))
    assert abs(found[2] - expected[2]).max() < 1e-12


def uneven(world, own):
    model, optimizer = made()
    draw = torch.Generator().manual_seed(world.rank)
    kept = own(model) if own else []
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 150}) as engine:
        for _ in range(2):
            with engine.join():
                for _ in range(1 + 2 * world.rank):
                    for tensor in kept:
                        tensor.zero_()
                    if not kept:
                        optimizer.zero_grad()
                    x = torch.randn(4, 3, generator=draw, dtype=torch.float64)
                    model(x).square().mean().backward()
                    optimizer.step()
    if kept:
        kept[0].fill_(7.0)
        assert (next(model.parameters()).grad == 7.0).all()
    return values(model)


def test_a_rank_that_has_followed_others_in_join_goes_on_with_them():
    expected = in_process(uneven, 3, None)
    for found, wanted in zip(in_process(uneven, 3, flat_views), expected, strict=True):
        assert abs(found - wanted).max() < 1e-12


def collected(held):
    """What is left of a gradient to which autograd has added."""
    parameter = nn.Parameter(torch.zeros(3))
    buffer = GradientBuffer(Bucket(0, [Item("p", parameter)]))
    for _ in range(2):
        parameter.mul(2.0).sum().backward()
    gradient, kept = weakref.ref(parameter.grad), parameter.grad if held else None
    buffer.expect_all()
    buffer.collect()
    buffer.theirs.give_back()
    return parameter.grad is not buffer.views[0] and parameter.grad is kept, gradient() is not None


def test_what_no_sync_has_left_is_let_go():
    assert collected(held=True) == (True, True)
    assert collected(held=False) == (False, False)


@pytest.mark.parametrize("shared", [False, True])
def test_a_gradient_in_memory_that_other_processes_see_is_the_loops_own(shared):
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.zeros(3).share_memory_() if shared else torch.zeros(3)
    zero_or_none(Item("p", parameter))
    assert (parameter.grad is not None) == shared


class Routed(nn.Module):
    """Uses its second part in every other step, and not in the first one."""

    def __init__(self, size):
        super().__init__()
        self.first, self.second, self.calls = nn.Linear(3, size), nn.Linear(3, size), 0

    def forward(self, x):
        self.calls += 1
        return self.first(x) + (self.second(x) if self.calls % 2 == 0 else 0.0)


def routed(world, algorithm, own, size):
    """Loops with tensors of their own have zeros where a part was not used."""
    torch.manual_seed(0)
    model = Routed(size).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    kept = own(model) if own else []
    found = []
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 150}):
        for step in range(5):
            for tensor in kept if step else ():
                tensor.zero_()
            if not kept:
                optimizer.zero_grad(set_to_none=False)
            model(torch.randn(4, 3, generator=draw, dtype=torch.float64)).square().mean().backward()
            if kept:
                assert torch.equal(gradients(kept), gradients(p.grad for p in model.parameters()))
            optimizer.step()
            found.append(values(model))
    return found


@pytest.mark.parametrize("size", [5, 50_000], ids=["buckets", "in place"])
@pytest.mark.parametrize("algorithm", ["bsp", "topk_sgd"])
def test_zeros_that_the_first_backward_leaves_are_the_loops_own(algorithm, size):
    expected = in_process(routed, 3, algorithm, None, size)
    for found, wanted in zip(in_process(routed, 3, algorithm, list_of_tensors, size), expected, strict=True):
        for ours, theirs in zip(found, wanted, strict=True):
            assert abs(ours - theirs).max() < 1e-12


def fused(world, own, fused):
    model, _ = made()
    for layer in model[0], model[2]:
        layer.weight.data = layer.weight.data.t().contiguous().t()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, fused=fused)
    kept = own(model) if own else []
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 150}):
        for _ in range(4):
            for tensor in kept:
                tensor.zero_()
            if not kept:
                optimizer.zero_grad()
            model(torch.randn(4, 3, generator=draw, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
            if kept:
                assert torch.equal(gradients(kept), gradients(p.grad for p in model.parameters()))
    return values(model)


def contiguous(model):
    """In another memory order than parameters."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros(parameter.shape, dtype=parameter.dtype)
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")
def test_a_fused_optimizer_leaves_gradients_in_another_memory_order_the_loops_own():
    expected = in_process(fused, 3, None, False)
    for found, wanted in zip(in_process(fused, 3, contiguous, True), expected, strict=True):
        assert abs(found - wanted).max() < 1e-12
