"""bsp against torch's DistributedDataParallel, in the same processes and from the same seed."""

from __future__ import annotations

import warnings
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import relaxcomm
from relaxcomm.replica import gradient_in_place
from tests.models import CASES, Case, make_optimizer
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks
STEPS = 20
PARITY = ["mlp", "convnet", "transformer", "transformer_32_64"]  # bfloat16 sums are exact on 2 ranks only


def loop(
    case: Case, model: nn.Module, called: nn.Module, optimizer, rank: int, set_to_none: bool, micro: int = 1
):
    """The user's loop, the same for both; with `micro` > 1 all but the last backward are local."""
    for step in range(STEPS):
        for part in range(micro - 1):
            with called.no_sync():
                (case.local_loss(model, 100 + micro * step + part, rank) / micro).backward()
        (case.local_loss(model, step, rank) / micro).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)


def build(case: Case, seed: int, channels_last: bool) -> nn.Module:
    model = case.model(seed)
    return model.to(memory_format=torch.channels_last) if channels_last else model


def distributed(model: nn.Module, unused: bool, bucket_bytes: int) -> nn.Module:
    """DDP that leaves BatchNorm's buffers local, as bsp does."""
    with warnings.catch_warnings():  # the option has another name from torch 2.13 on
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            model, find_unused_parameters=unused, broadcast_buffers=False, bucket_cap_mb=bucket_bytes / 2**20
        )


def train_ddp(rank, name, optimizer_name, set_to_none, bucket_bytes, channels_last=False, micro=1):
    """State of the model after DDP."""
    case = CASES[name]
    model = build(case, rank, channels_last)
    optimizer = make_optimizer(optimizer_name, model)
    wrapped = distributed(model, unused=name.startswith("transformer"), bucket_bytes=bucket_bytes)
    loop(case, wrapped, wrapped, optimizer, rank, set_to_none, micro)
    return dict(model.state_dict())


def train_bsp(rank, name, optimizer_name, set_to_none, bucket_bytes, channels_last=False, micro=1):
    """State of the model under bsp before close averages the buffers; unused parameters keep no gradient."""
    case = CASES[name]
    model = build(case, rank, channels_last)
    optimizer = make_optimizer(optimizer_name, model)
    config = {"algorithm": "bsp", "bucket_bytes": bucket_bytes, "timeout_seconds": 20}
    with relaxcomm.attach(model, optimizer, config) as engine:
        loop(case, model, engine, optimizer, rank, set_to_none, micro)
        found = {key: value.clone() for key, value in model.state_dict().items()}
    assert all(p.grad is None for key, p in model.named_parameters() if key.startswith("unused"))
    return found


def assert_parity(world_size, *args, train=train_bsp, debug=False):
    """Train both ways; DDP always without debug checks, since torch 2.13's reducer crashes under them."""
    theirs = run_ranks(train_ddp, world_size, *args)
    ours = run_ranks(train, world_size, *args, debug=debug)
    tolerance = {"rtol": 0, "atol": 0} if world_size == 2 else {"rtol": 1e-4, "atol": 2e-6}
    for rank, (expected, found) in enumerate(zip(theirs, ours, strict=True)):
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            torch.testing.assert_close(
                found[key],
                value,
                **tolerance,
                msg=lambda text, key=key, rank=rank: f"rank {rank}, {key}: {text}",
            )


@pytest.mark.every_other("world_size", "name", "optimizer", "set_to_none", of=4)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize(
    ("world_size", "name"),
    [*((2, name) for name in PARITY), *((3, name) for name in PARITY if name != "transformer")],
)
def test_bsp_equals_ddp_after_twenty_steps(world_size, name, optimizer, set_to_none):
    assert_parity(world_size, name, optimizer, set_to_none, 1000)


@pytest.mark.parametrize("bucket_bytes", [100, 1 << 24])
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_parity_holds_from_many_buckets_to_one(name, bucket_bytes):
    assert_parity(2, name, "momentum", True, bucket_bytes)


@pytest.mark.every_other("name", "debug")
@pytest.mark.parametrize("name", ["mlp", "transformer_32_64"])
def test_parity_holds_under_debug_checks(name, debug):
    assert_parity(3, name, "momentum", True, 500, debug=debug)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_channels_last_parameters_equal_ddp(set_to_none):
    assert_parity(2, "convnet", "momentum", set_to_none, 600, True)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_accumulation_with_no_sync_equals_ddp(name, set_to_none):
    assert_parity(2, name, "adamw", set_to_none, 800, False, 3)


def train_in_place(rank, *args):
    """The same where no gradient is too small to stay where autograd has put it."""
    with mock.patch.object(gradient_in_place, "CACHED_BYTES", 1):
        return train_bsp(rank, *args)


@pytest.mark.every_other("name", "set_to_none")
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", ["mlp", "convnet", "transformer_32_64"])
def test_parity_holds_where_gradients_stay(name, set_to_none):
    args = (name, "momentum", set_to_none, 1000, name == "convnet", 2)
    assert_parity(3, *args, train=train_in_place)
