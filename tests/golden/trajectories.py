"""Trains a small model with buffers on three in-process ranks and two buckets or more, step by step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

import relaxcomm
from relaxcomm import checkpoint
from tests.golden.cases import CASES, TOPOLOGIES, UNRECORDED, WITH_ADAM, WITHOUT_MOMENTUM
from tests.models import SEEDING

RANKS = 3
EPOCHS = 4
SAMPLES = 60
STOP = 13
"""After so many steps of 20 a run is saved: amid an epoch, between exchanges, with late ones on their way."""


@dataclass(frozen=True)
class Trajectory:
    """What one rank saw.

    Args:
        steps: digests of all parameters and buffers after each optimizer step, and after close.
        before_close, after_close: those values.
        counts: the statistics that an algorithm decides.
    """

    steps: list[str]
    before_close: NDArray[np.float64]
    after_close: NDArray[np.float64]
    counts: dict[str, int]


def trajectory(name: str, loop: str, dtype: torch.dtype = torch.float64, **more: Path) -> list[Trajectory]:
    """What each rank saw; bit for bit the same whenever the arithmetic and its order are."""
    return relaxcomm.simulate(lambda group: train(group, name, loop, dtype, **more), RANKS)


def train(
    group: Any,
    name: str,
    loop: str,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    save: Path | None = None,
    load: Path | None = None,
) -> Trajectory:
    """What this rank of a group sees, if it is told to save in a folder, or goes on from there."""
    model, data = _model(dtype).to(device), _data(dtype)
    momentum = 0.0 if name in WITHOUT_MOMENTUM else 0.8
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    if name in WITH_ADAM:  # a large eps, so that the rounding of a gradient near 0 is no step
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, eps=1e-3)
    config = {
        "bucket_bytes": 512,
        "data": {"partition": "by_label"},
        "topology": TOPOLOGIES.get(name, "complete"),
    }
    config["algorithm"] = (CASES | UNRECORDED)[name]
    steps = []
    with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
        loader = engine.loader(data, batch_size=4)
        if load is not None:
            assert checkpoint.load(engine, load) is not None
        for _ in range(loader.epoch, EPOCHS):
            for inputs, targets in loader:
                num = len(inputs)  # BatchNorm wants two samples or more
                size = (num + 1) // 2 if loop == "accumulated" and num > 3 else num
                for (x, y), share in engine.micro_batches((inputs, targets), size):
                    (share * nn.functional.cross_entropy(model(x.to(device)), y.to(device))).backward()
                if loop == "accumulated":
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                steps.append(_digest(model))
                if save is not None and len(steps) == STOP:
                    checkpoint.save(engine, save)
        before = _values(model)
    counts = {
        key: int(engine.statistics[key]) for key in ("steps", "synchronisations", "samples", "bytes_sent")
    }
    return Trajectory([*steps, _digest(model)], before, _values(model), counts)


def _model(dtype: torch.dtype) -> nn.Module:
    with SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
        return nn.Sequential(*layers).to(dtype)


def _data(dtype: torch.dtype) -> TensorDataset:
    draw = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 6, generator=draw, dtype=torch.float64)
    return TensorDataset(inputs.to(dtype), torch.arange(SAMPLES) % 3)


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().cpu() for tensor in model.state_dict().values()]


def _values(model: nn.Module) -> NDArray[np.float64]:
    return torch.cat([tensor.double().flatten() for tensor in _tensors(model)]).numpy()


def _digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in _tensors(model))).hexdigest()[:16]
