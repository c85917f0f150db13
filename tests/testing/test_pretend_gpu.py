"""A pretended GPU shows where the host waits, and refuses what a GPU refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm.testing import PretendGpu


def waits_of(action):
    """Where the host waited."""
    with PretendGpu() as gpu:
        x = torch.randn(5, 16, device="cuda")
        gpu.work.clear()
        action(x)
        return [wait.split(" at ")[0] for wait in gpu.work.waits]


@pytest.mark.parametrize(
    ("action", "wait"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: bool(x.sum() > 0), "_local_scalar_dense"),
        (lambda x: float(x[0, 0]), "_local_scalar_dense"),
        (lambda x: x.sum().tolist(), "tolist"),
        (lambda x: x.cpu(), "a copy to the host"),
        (lambda x: x.to("cpu"), "a copy to the host"),
        (lambda x: torch.zeros(5, 16).cuda(), "a copy to the GPU"),
        (lambda x: torch.zeros(5, 16).to("cuda", non_blocking=True), "a copy to the GPU"),
        (lambda x: torch.empty(5, 16).copy_(x), "copy_ from the host"),
        (lambda x: torch.empty(5, 16).copy_(x, non_blocking=True), "copy_ from the host"),
        (lambda x: x.copy_(torch.zeros(5, 16)), "copy_ to the host"),
        (lambda x: torch.tensor([1.0], device=x.device), "numbers from the host"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x[torch.tensor([0, 1])], "indices from the host"),
        (lambda x: x.index_put_((torch.arange(2, device="cuda"),), torch.tensor(1.0)), "a number"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: torch.equal(x, x), "equal"),
        (lambda x: x.repeat_interleave(torch.ones(5, device="cuda").long(), 0), "repeat_interleave"),
        (lambda x: torch.cuda.synchronize(), "synchronize"),
        (lambda x: torch.cuda.current_stream().synchronize(), "Stream.synchronize"),
        (lambda x: torch.cuda.Event().synchronize(), "Event.synchronize"),
    ],
)
def test_what_the_host_waits_for(action, wait):
    assert len(found := waits_of(action)) == 1
    assert found[0].split()[0] == wait.split()[0]


@pytest.mark.parametrize(
    "action",
    [
        lambda x: (x * 2).sum(),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.index_select(0, torch.arange(2, device="cuda")),
        lambda x: x.repeat_interleave(torch.ones(5, device="cuda").long(), 0, output_size=5),
        lambda x: x.to("cpu", non_blocking=True),
        lambda x: torch.zeros(5, 16).pin_memory().to("cuda", non_blocking=True),
        lambda x: torch.empty(5, 16, pin_memory=True).copy_(x, non_blocking=True),
        lambda x: x.new_zeros(3) + torch.full((3,), 2.0, device=x.device),
        lambda x: x + torch.tensor(2.0),
        lambda x: x.index_put_((x > 0,), torch.tensor(0.0)),
        lambda x: torch.zeros(5, 16).pin_memory().to("cuda", torch.float64, True),
        lambda x: torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(0)),
        lambda x: torch.cuda.Event().query(),
        lambda x: torch.cuda.is_current_stream_capturing(),
    ],
)
def test_what_it_does_not_wait_for(action):
    assert waits_of(action) == []


def test_tensors_of_two_devices_do_not_mix():
    with PretendGpu():
        with pytest.raises(
            RuntimeError, match=r"add: expected all tensors on the same device, got \(2,\) on cuda:0"
        ):
            torch.ones(2, device="cuda") + torch.ones(2)
        with pytest.raises(TypeError, match=r"Tensor.cpu\(\) first"):
            torch.ones(2, device="cuda").numpy()


def test_training_stays_on_the_device_and_agrees_with_the_cpu():
    def train(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        seen = set()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: seen.add((p.device.type, p.grad.device.type))
            )
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4).to(device)).square().mean().backward()
            optimizer.step()
        return seen, model.cpu().state_dict()

    plain_seen, plain = train("cpu")
    with PretendGpu():
        seen, there = train("cuda")
    assert (plain_seen, seen) == ({("cpu", "cpu")}, {("cuda", "cuda")})
    assert all(torch.equal(plain[name], there[name]) for name in plain)


def test_kernels_and_bytes_are_counted_and_views_are_none():
    with PretendGpu() as gpu:
        x, y = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
        gpu.work.clear()
        z = x.view(10, 100).t()[2:].detach()
        torch.empty_like(z)
        assert gpu.work.launches == 0
        torch._foreach_add_([x, y], 1.0)
        assert dict(gpu.work.kernels) == {"_foreach_add_": 1}
        gpu.work.clear()
        x + y
        assert gpu.work.num_bytes == 3 * 4000


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.zeros(4, device="cuda"),
        lambda x: torch.full((4,), 2.0, device="cuda"),
        lambda x: torch.arange(4, device="cuda"),
        lambda x: torch.zeros_like(x, device="cuda"),
        lambda x: x.new_zeros(4),
        lambda x: torch.nn.utils.rnn.pad_sequence([x, x]),
    ],
)
def test_what_fills_new_memory_is_a_launch(make):
    with PretendGpu() as gpu:
        x = torch.empty(5, device="cuda")
        gpu.work.clear()
        make(x)
        assert gpu.work.launches == 1


def test_nothing_is_left_behind():
    before = torch.Tensor.device, torch.empty, torch.cuda.Event, torch.Generator
    with PretendGpu():
        x = torch.zeros(2, device="cuda")
    assert (torch.Tensor.device, torch.empty, torch.cuda.Event, torch.Generator) == before
    assert x.device.type == "cpu"
    assert not torch.cuda.is_available()
