"""Trains the small models sharded on a mesh of 2 replicas x 2 shards, and whole or cut in-process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import relaxcomm
from relaxcomm.tensors.items import local
from tests.models import CASES as MODELS, Case, regression, take_step

REPLICAS, SHARDS, STEPS = 2, 2, 8
RANKS = REPLICAS * SHARDS
History = list[NDArray[np.float64]]
Optimize = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@functools.cache
def mesh() -> DeviceMesh:
    """Of gloo ranks, made once in each process."""
    return init_device_mesh("cpu", (REPLICAS, SHARDS), mesh_dim_names=("replicate", "shard"))


def shard(model: nn.Module, over: Any = None, **options: Any) -> nn.Module:
    """A model whose layers are sharded one by one, and then the rest, as users do."""
    over = mesh()["shard"] if over is None else over
    for module in model.children():
        if any(True for _ in module.parameters()):
            fully_shard(module, mesh=over, **options)
    return fully_shard(model, mesh=over, **options)


def make_matrices() -> nn.Module:
    """Uneven shards without biases, whose order among the buckets would differ between the runs."""
    sizes = (6, 11), (11, 9), (9, 5)
    layers = [layer for size in sizes for layer in (nn.Linear(*size, bias=False), nn.Tanh())]
    return nn.Sequential(*layers).double()


def make_thin() -> nn.Module:
    """With one output, of which one rank has the bias, and the other nothing."""
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()


CASES = {
    **MODELS,
    "matrices": Case(make_matrices, regression(6, 5, torch.float64), nn.functional.mse_loss),
    "thin": Case(make_thin, regression(6, 1, torch.float64), nn.functional.mse_loss),
}


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of most tests."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """With a large eps, so that the rounding of a gradient near 0 does not become a full step."""
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


def plain(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """For algorithms that have momentum themselves."""
    return torch.optim.SGD(parameters, lr=0.1)


OPTIMIZERS: dict[str, Optimize] = {"momentum": momentum, "adamw": adamw, "plain": plain}


def train(
    config: Any, *, case: str = "toy", optimizer: str = "momentum", steps: int = STEPS, **options: Any
) -> tuple[History, dict[str, Any]]:
    """This rank's whole replica after each step and after close; replicas begin with different parameters."""
    number = torch.distributed.get_rank()
    model = shard(CASES[case].model(seed=number // SHARDS), **options)
    made = OPTIMIZERS[optimizer](list(model.parameters()))
    history = []
    with relaxcomm.attach(model, made, {"timeout_seconds": 60, **config}) as engine:
        for step in range(steps):
            take_step(CASES[case].local_loss(model, step, number), made)
            history.append(whole(model))
        statistics = dict(engine.statistics)
    return [*history, whole(model)], statistics


def whole(model: nn.Module) -> NDArray[np.float64]:
    """All parameters of a sharded model in one vector."""
    full: list[Tensor] = [p.full_tensor().detach() for p in model.parameters()]  # type: ignore[attr-defined]
    return torch.cat([one.double().flatten() for one in full]).numpy()


def train_whole(
    config: Any, *, case: str = "toy", optimizer: str = "momentum", steps: int = STEPS
) -> list[History]:
    """The same on two workers in-process, each with the data of a replica's ranks."""

    def worker(group: relaxcomm.InProcessGroup) -> History:
        rank = group.rank()
        model = CASES[case].model(seed=rank)
        made = OPTIMIZERS[optimizer](list(model.parameters()))
        history = []
        with relaxcomm.attach(model, made, config, process_group=group):
            for step in range(steps):
                losses = [CASES[case].local_loss(model, step, rank * SHARDS + s) for s in range(SHARDS)]
                take_step(sum(losses[1:], losses[0]) / SHARDS, made)
                history.append(flat([p.detach() for p in model.parameters()]))
        return [*history, flat([p.detach() for p in model.parameters()])]

    return relaxcomm.simulate(worker, REPLICAS)


def train_cut(
    config: Any, *, case: str = "toy", optimizer: str = "momentum", steps: int = STEPS
) -> list[History]:
    """The same with an engine for each shard, to which a parameter's part is a parameter of its own."""

    def worker(group: relaxcomm.InProcessGroup) -> History:
        rank, model = group.rank(), CASES[case].model(seed=group.rank())
        parts = [_part(model, index) for index in range(SHARDS)]
        optimizers = [OPTIMIZERS[optimizer](list(part.parameters())) for part in parts]
        engines = [
            relaxcomm.attach(part, made, config, process_group=group)
            for part, made in zip(parts, optimizers, strict=True)
        ]
        history = []
        for step in range(steps):
            together = _together(model, parts)
            losses = []
            for s in range(SHARDS):
                inputs, targets = CASES[case].data(step, rank * SHARDS + s)
                called = torch.func.functional_call(model, together, (inputs,))
                losses.append(CASES[case].loss(called, targets))
            (sum(losses[1:], losses[0]) / SHARDS).backward()
            for made in optimizers:
                made.step()
                made.zero_grad()
            history.append(flat(list(_together(model, parts).values())))
        for engine in engines:
            engine.close()
        return [*history, flat(list(_together(model, parts).values()))]

    return relaxcomm.simulate(worker, REPLICAS)


def _part(model: nn.Module, index: int) -> nn.Module:
    """One part of each parameter, by the same names."""
    part = nn.Module()
    for name, parameter in model.named_parameters():
        pieces = torch.chunk(parameter.detach(), SHARDS)
        piece = pieces[index] if index < len(pieces) else parameter.detach()[:0]
        part.register_parameter(name.replace(".", "_"), nn.Parameter(piece.clone()))
    return part


def _together(model: nn.Module, parts: list[nn.Module]) -> dict[str, Tensor]:
    return {
        name: torch.cat([part.get_parameter(name.replace(".", "_")) for part in parts])
        for name, _ in model.named_parameters()
    }


def flat(tensors: list[Tensor]) -> NDArray[np.float64]:
    """Tensors in one vector."""
    return torch.cat([local(one).detach().double().flatten() for one in tensors]).numpy()
