"""The peers that the lab compares with: each trains, agrees where it averages, and can be started again."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.lab.rivals import CANNOT, RIVALS
from tests.ranks import launch_script, run_ranks

WORLD_SIZE, STEPS, LEARNING_RATE = 3, 4, 0.1
# For each: its settings, and the library that it needs.
EVERY_STEP = {"ddp": {}, "ddp_fp16": {}, "ddp_powersgd": {"matrix_rank": 2, "exact_steps": 3}}
PERIODIC = {
    "periodic_averaging": ({"steps": STEPS}, "torch"),
    "post_local_sgd": ({"steps": STEPS, "after_steps": 5}, "torch"),
    "accelerate_local_sgd": ({"steps": STEPS}, "accelerate"),
    "torchft_local_sgd": ({"steps": STEPS}, "torchft"),
    "torchft_diloco": ({"steps": STEPS}, "torchft"),
    "hivemind": ({"steps": STEPS}, "hivemind"),
}


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 3))


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(5, 7, generator=draw), torch.randn(5, 3, generator=draw)


def train(rank: int, name: str, settings: dict, num_steps: int, num_trials: int) -> list[torch.Tensor]:
    """The parameters before training and after every step of each trial, in one process."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1")
    trails = []
    for _ in range(num_trials):
        model = network()
        contender = RIVALS[name](model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), **settings)
        trail = [flat(model)]
        for step in range(num_steps):
            x, y = batch(rank, step)
            (contender.model(x) - y).square().mean().backward()
            contender.optimizer.step()
            contender.optimizer.zero_grad()
            contender.after_step()
            trail.append(flat(model))
        contender.close()
        trails.append(torch.stack(trail))
    # The group that the lab gave still works, and nothing of the rival is left on the optimizer's path.
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == WORLD_SIZE
    return trails


def averaged_gradients(num_steps: int) -> torch.Tensor:
    """What exact averaging of the gradients gives, in one process."""
    model, trail = network(), []
    for step in range(num_steps):
        for rank in range(WORLD_SIZE):
            x, y = batch(rank, step)
            ((model(x) - y).square().mean() / WORLD_SIZE).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.grad
        model.zero_grad()
        trail.append(flat(model))
    return torch.stack(trail)


@pytest.mark.ranks
@pytest.mark.parametrize("name", EVERY_STEP)
def test_gradients_are_averaged_in_every_step(name):
    """PowerSGD only in its exact steps: its approximation comes after."""
    settings = EVERY_STEP[name]
    trails = run_ranks(train, WORLD_SIZE, name, settings, 9, 2)
    expected = averaged_gradients(9)
    for of_rank in trails:
        for trail, first in zip(of_rank, trails[0], strict=True):
            assert torch.equal(trail, first)
            exact = settings.get("exact_steps", 9)
            torch.testing.assert_close(trail[1 : 1 + exact], expected[:exact], rtol=0, atol=1e-3)
            assert (trail[-1] - trail[-2]).norm() > 1e-4


def in_fresh_processes(name: str, settings: dict, folder: Path) -> list[list[torch.Tensor]]:
    """What `train` returns on each rank, of two trials."""
    script = f"""
import os, torch, torch.distributed as dist
from tests.benchmarks.test_rivals import train
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.save(train(rank, {name!r}, {settings!r}, 17, 2), os.path.join({str(folder)!r}, str(rank)))
dist.barrier()
dist.destroy_process_group()
"""
    for process in launch_script(script, WORLD_SIZE, timeout=200):
        assert process.returncode == 0, process.stderr
    return [torch.load(folder / str(rank)) for rank in range(WORLD_SIZE)]


@pytest.mark.ranks
@pytest.mark.timeout(250)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "hivemind" else []) for name in PERIODIC]
)
def test_parameters_agree_when_they_are_averaged_and_differ_between(name, tmp_path):
    settings, library = PERIODIC[name]
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: see benchmarks/lab/rivals.txt")
    if name == "hivemind":  # it starts processes of its own, which the pool's ranks may not
        trails = in_fresh_processes(name, settings, tmp_path)
    else:
        trails = run_ranks(train, WORLD_SIZE, name, settings, 17, 2, timeout=100)
    for trial in range(2):
        of_ranks = torch.stack([of_rank[trial] for of_rank in trails])  # ranks x (1 + steps) x parameters
        spread = (of_ranks.amax(0) - of_ranks.amin(0)).amax(1)
        agree = [step for step, value in enumerate(spread.tolist()) if value < 1e-6]
        assert agree == AVERAGED_AFTER[name]
        assert spread.max() > 1e-3


# PyTorch's averager averages in the first step too, and then every `steps`.
AVERAGED_AFTER = {
    "periodic_averaging": [0, 1, 5, 9, 13, 17],
    "post_local_sgd": [0, 1, 2, 3, 4, 5, 6, 10, 14],
    "accelerate_local_sgd": [0, 4, 8, 12, 16],
    "torchft_local_sgd": [0, 4, 8, 12, 16],
    "torchft_diloco": [0, 4, 8, 12, 16],
    "hivemind": [0, 4, 8, 12, 16],
}


@pytest.mark.ranks
def test_post_local_sgd_begins_as_ddp():
    settings, _ = PERIODIC["post_local_sgd"]
    trail = run_ranks(train, WORLD_SIZE, "post_local_sgd", settings, 5, 1)[1][0]
    torch.testing.assert_close(trail[1:], averaged_gradients(5), rtol=0, atol=1e-6)


def test_what_cannot_run_is_not_offered_and_says_why():
    assert not CANNOT.keys() & RIVALS.keys()
    assert EVERY_STEP.keys() | PERIODIC.keys() == RIVALS.keys()


def refused(rank: int) -> str:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    try:
        nn.parallel.DistributedDataParallel(network()).register_comm_hook(None, bf16_compress_hook)
    except TypeError as error:
        return str(error)
    return "accepted"


@pytest.mark.ranks
def test_ddp_still_refuses_bf16_here():
    """If it no longer does, it becomes a rival."""
    for said in run_ranks(refused, WORLD_SIZE):
        assert "CUDA" in said
