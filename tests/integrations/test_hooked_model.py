"""Where NCCL connects the ranks of a communication hook, each model must be whole on a GPU of its own."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import relaxcomm
from relaxcomm import primitives
from relaxcomm.integrations import ddp, hooked_model
from relaxcomm.testing import PretendGpu
from tests.engine.harness import on_gloo
from tests.network.pretended_nccl import Connected, pretended
from tests.ranks import RankError

SPOILT = 1


@dataclass
class Bucket:
    """One of DistributedDataParallel's, whose own are made where no GPU can be pretended."""

    held: list[nn.Parameter]
    last: bool
    flat: torch.Tensor

    def parameters(self) -> list[nn.Parameter]:
        return self.held

    def buffer(self) -> torch.Tensor:
        return self.flat

    def is_last(self) -> bool:
        return self.last


def first_backward(world: Any, case: str) -> torch.Tensor:
    """What two buckets become on a pretended GPU; on one rank, or all, something is wrong with it."""
    is_here = world.rank == SPOILT
    model = nn.BatchNorm1d(4).to("cuda")
    if case == "a buffer" and is_here:
        model.running_mean = torch.zeros(4)
    if case == "split" and is_here:
        model.bias = nn.Parameter(torch.zeros(4))
    with pytest.MonkeyPatch.context() as patched:
        if case == "one GPU":
            card = SimpleNamespace(uuid="7")
            patched.setattr(torch.cuda, "get_device_properties", lambda _: card)
        if case == "elsewhere":
            patched.setitem(os.environ, "NCCL_HOSTID", f"host{world.rank}")
        if case == "current" and is_here:
            patched.setattr(torch.cuda, "is_initialized", lambda: True)
            patched.setattr(torch.cuda, "current_device", lambda: 3)
        hook = relaxcomm.ddp_hook(primitives.identity(), module=model)
        patched.setattr(ddp, "Future", lambda devices: Future())  # torch's own asks the driver
        for p in (model.weight, model.bias):
            flat = torch.full((4,), float(world.rank)).to("cuda")
            future = hook(None, Bucket([p], p is model.bias, flat))
    return future.value().cpu()


CASES = {
    "a buffer": r"rank 1: .* buffers are not: running_mean on cpu; .*model.to\('cuda:0'\)",
    "split": r"rank 1: .*several devices: weight on cuda:0, bias on cpu;",
    "current": r"rank 1: .*current device is cuda:3; call torch.cuda.set_device\(0\)",
    "one GPU": r"ranks \[0, 1, 2\] on .* 7;.*LOCAL_RANK",
}


def all_cases(world):
    words = {}
    with pretended(Connected), PretendGpu():
        for case in CASES:
            with pytest.raises(relaxcomm.UsageError) as caught:
                first_backward(world, case)
            words[case] = str(caught.value)
        return words, first_backward(world, "elsewhere").tolist()


@pytest.mark.ranks
def test_every_rank_says_what_nccl_cannot_connect():
    for words, averages in on_gloo(all_cases, 3):
        assert averages == [1.0] * 4
        for case, said in CASES.items():
            assert re.search(said, words[case]), words[case]


def refused_in_backward(world):
    def gpu_holding(parameters, buffers, transport, current):
        if world.rank == SPOILT:
            raise relaxcomm.UsageError(f"{[*parameters]} and {[*buffers]}")
        return ""

    module = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    model = DistributedDataParallel(module, bucket_cap_mb=0.0003)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hooked_model, "gpu_holding", gpu_holding)
        model.register_comm_hook(None, relaxcomm.ddp_hook(primitives.identity(), module=module))
        model(torch.randn(8, 16)).sum().backward()


@pytest.mark.ranks
def test_the_first_backward_raises_it_of_the_whole_model():
    with pytest.raises(RankError) as caught:
        on_gloo(refused_in_backward, 3)
    assert sorted(caught.value.errors) == [0, 1, 2]
    for kind, text in caught.value.errors.values():
        assert kind == "UsageError"
        assert "rank 1: " in text
        assert all(name in text for name in ("0.weight", "1.bias", "2.weight", "1.running_mean"))
