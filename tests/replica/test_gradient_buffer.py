"""Large gradients are copied as they come, small ones together: the mean is the same."""

from __future__ import annotations

import pytest
import torch

import relaxcomm
from relaxcomm.errors import UsageError
from relaxcomm.replica.gradient_buffer import GradientBuffer
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.testing import PretendGpu

SIZES = [(520, 700), (700, 8), (8, 4)]  # 2.8 MiB, 44 KiB and less: taken at once, and together with the rest


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in SIZES)).double()


def train(group, backwards):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    draw = torch.Generator().manual_seed(1 + group.rank())
    with relaxcomm.attach(model, optimizer, "bsp", process_group=group) as engine:
        for _ in range(4):
            for synchronises in backwards:
                x = torch.randn(2, 520, generator=draw, dtype=torch.float64)
                if synchronises:
                    model(x).square().sum().backward()
                else:
                    with engine.no_sync():
                        model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def reference(size, backwards):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    draws = [torch.Generator().manual_seed(1 + rank) for rank in range(size)]
    for _ in range(4):
        for _ in backwards:
            for draw in draws:
                (
                    model(torch.randn(2, 520, generator=draw, dtype=torch.float64)).square().sum() / size
                ).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(
    "backwards", [(True,), (False, True), (True, True)], ids=["one", "accumulated", "two"]
)
def test_the_mean_of_large_and_small_gradients(backwards):
    expected = reference(3, backwards)
    for found in relaxcomm.simulate(lambda group: train(group, backwards), 3):
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_a_gpu_takes_all_gradients_of_a_bucket_at_once():
    with PretendGpu():
        large = torch.nn.Parameter(torch.zeros(600, 600, device="cuda"))
        assert GradientBuffer(Bucket(0, [Item("large", large)])).large == []


def test_which_gradients_hold_anything_is_known_on_the_gpu():
    with PretendGpu() as gpu:
        parameters = [torch.nn.Parameter(torch.zeros(3, device="cuda")) for _ in range(2)]
        buffer = GradientBuffer(Bucket(0, [Item(str(i), p) for i, p in enumerate(parameters)]))
        buffer.main[4] = -1.0
        gpu.work.clear()
        flags = buffer.nonzero_flags()
        assert not gpu.work.waits
        assert flags.tolist() == [0, 1]


def test_what_was_taken_is_multiplied_once():
    parameters = [torch.nn.Parameter(torch.zeros(600, 600)), torch.nn.Parameter(torch.zeros(3))]
    buffer = GradientBuffer(Bucket(0, [Item(str(i), p) for i, p in enumerate(parameters)]))
    assert buffer.large == [0]
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        buffer.expect_all()
        buffer.take(0, 0.25)
        buffer.collect(0.25)
        assert [p.grad.unique().tolist() for p in parameters] == [[0.25], [0.25]]
    for parameter in parameters:
        parameter.grad += 1  # another backward adds to what lies here
    buffer.expect_all()
    buffer.take(0, 0.25)
    buffer.collect(0.25)
    assert [p.grad.unique().tolist() for p in parameters] == [[0.3125], [0.3125]]


def fill(buffer):
    """Take large gradients as they come, and collect the others."""
    buffer.expect_all()
    for index in buffer.large:
        buffer.take(index, 0.5)
    buffer.collect(0.5)


@pytest.mark.parametrize("fresh", [range(6), (0, 2, 5), (1, 3), ()], ids=str)
def test_spans_hold_what_has_come_and_zeros(fresh):
    sizes = (3, 600 * 600, 200_000, 5, 100_000, 60_000)
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    buffer = GradientBuffer(Bucket(0, [Item(str(i), p) for i, p in enumerate(parameters)]))
    for index, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, index + 1.0) if index in fresh else None
    fill(buffer)
    for index, (view, parameter) in enumerate(zip(buffer.views, parameters, strict=True)):
        assert view.unique().tolist() == [(index + 1) / 2 if index in fresh else 0.0]
        assert (parameter.grad is None) == (index not in fresh)
    assert buffer.flags.tolist() == [float(index in fresh) for index in range(6)]


@pytest.mark.parametrize("size", [3, 600 * 600], ids=["small", "large"])
@pytest.mark.parametrize("change", ["half", "sparse"])
def test_what_torch_refuses_is_told_with_a_remedy(size, change):
    parameters = [torch.nn.Parameter(torch.zeros(600, 600)), torch.nn.Parameter(torch.zeros(size, 1))]
    buffer = GradientBuffer(Bucket(0, [Item(str(i), p) for i, p in enumerate(parameters)]))
    parameters[0].grad = torch.ones_like(parameters[0])
    if change == "half":
        parameters[1].data = parameters[1].data.half()
        parameters[1].grad, remedy = torch.ones_like(parameters[1]), "convert the model, attach again"
    else:
        parameters[1].grad, remedy = torch.ones(size, 1).to_sparse(), "use sparse=False"
    with pytest.raises(relaxcomm.UsageError, match=remedy):
        fill(buffer)


@pytest.mark.skipif(not hasattr(torch.zeros(1), "grad_dtype"), reason="this torch has no grad_dtype")
@pytest.mark.parametrize("side", [4, 512])  # the latter is exchanged in place
def test_a_gradient_of_another_type_is_refused(side):
    def program(group):
        model = torch.nn.Linear(side, side)
        model.weight.grad_dtype = torch.float64
        with relaxcomm.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "bsp", process_group=group):
            model(torch.ones(1, side)).sum().backward()

    with pytest.raises(UsageError, match=r"weight is torch.float32 and has grad_dtype=torch.float64"):
        relaxcomm.simulate(program, 3)
