"""A pretended GPU runs a backward on the streams of the forward, and its caller comes after it."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from relaxcomm.testing import PretendGpu
from tests.testing.side_streams import side_stream


def cuda_weight():
    return torch.ones(4, device="cuda", requires_grad=True)


def on(stream, action):
    with torch.cuda.stream(stream):
        return action()


def called_on_a_side_stream(waits):
    weight, side = cuda_weight(), side_stream()
    on(side, lambda: (weight * 2).sum().backward())
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    weight.grad.sum()


def called_on_one_and_read_on_another(waits):
    weight, side, reader = cuda_weight(), side_stream(), torch.cuda.Stream()
    loss = on(side, lambda: (weight * 2).sum())
    called = torch.cuda.current_stream()
    loss.backward()
    if waits:
        reader.wait_event(called.record_event())
    on(reader, lambda: weight.grad.sum())


def after_a_hook_that_raises(waits):
    first = cuda_weight()
    loss = on(side_stream(), lambda: (first * 2).sum())
    first.register_post_accumulate_grad_hook(lambda _: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        loss.backward()
    assert torch.cuda.current_stream() is torch.cuda.default_stream()
    torch.cuda.synchronize()
    called_on_a_side_stream(waits)


@pytest.mark.parametrize(
    "action", [called_on_a_side_stream, called_on_one_and_read_on_another, after_a_hook_that_raises]
)
def test_only_who_calls_backward_comes_after_it(action):
    for waits, count in ((False, 1), (True, 0)):
        with PretendGpu(check_streams=True) as gpu:
            action(waits)
            assert len(gpu.races) == count


def twice(weight, loss):
    loss.backward(retain_graph=True)
    loss.backward()


def from_an_edge(weight, loss):
    edge = torch.autograd.graph.get_gradient_edge(loss)
    torch.autograd.backward(edge, grad_tensors=torch.ones((), device="cuda"))


def alone(weight, loss):
    (weight.grad,) = torch.autograd.grad(loss, weight)


def of_a_gradient(weight, loss):
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    gradient.sum().backward()


@pytest.mark.parametrize("backward", [twice, from_an_edge, alone, of_a_gradient])
def test_there_is_no_race_where_the_forward_was_on_another_stream(backward):
    with PretendGpu(check_streams=True) as gpu:
        weight = cuda_weight()
        loss = on(side_stream(), lambda: (weight * weight * weight).sum())
        backward(weight, loss)
        weight.grad.sum()
        assert gpu.races == []


def test_what_is_queued_for_the_end_comes_after_all_and_what_it_waits_for_is_waited_for():
    def at_end():
        torch.cuda.current_stream().wait_stream(other)
        weight.grad.add_(1)

    def hook(parameter):
        other.wait_stream(torch.cuda.current_stream())
        on(other, lambda: parameter.grad.mul_(2))
        torch.autograd.Variable._execution_engine.queue_callback(at_end)

    with PretendGpu(check_streams=True) as gpu:
        weight, other = cuda_weight(), torch.cuda.Stream()
        weight.register_post_accumulate_grad_hook(hook)
        on(side_stream(), lambda: (weight * 2).sum()).backward()
        weight.grad.sum()
        assert gpu.races == []


def test_a_function_of_ones_own_goes_back_where_it_went_forward():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            streams.append(torch.cuda.current_stream())
            return gradient * 2

    streams = []
    with PretendGpu(check_streams=True) as gpu:
        weight, side = cuda_weight(), side_stream()
        loss = on(side, lambda: Doubled.apply(weight)).sum()
        loss.backward()
        assert streams == [side]
        assert gpu.races  # the sum came after nothing


def test_what_a_forward_leaves_does_not_grow():
    with PretendGpu(check_streams=True) as gpu:
        model, x = nn.Linear(4, 4).to("cuda"), torch.ones(4, 4, device="cuda")
        for _ in range(5):
            model(x)
        assert len(gpu._autograd._forward) == 1
        assert len(gpu._autograd._leaves) == 2
