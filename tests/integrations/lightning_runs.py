"""What the tests of Lightning train, and how a rank of a pool runs a Trainer."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from relaxcomm.integrations.lightning import RelaxcommStrategy
from tests.ranks import run_ranks

SIZE = 3


def samples(count: int = 72) -> TensorDataset:
    """Eight numbers each, and what is to be found from them."""
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(count, 8, generator=draw)
    return TensorDataset(x, x.sum(1, keepdim=True) + x[:, :1].square())


class Net(pl.LightningModule):
    """Trains a small network, and notes its parameters after each batch and in each validation."""

    def __init__(self, norm: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        middle = nn.BatchNorm1d(16) if norm else nn.Tanh()
        self.net = nn.Sequential(nn.Linear(8, 16), middle, nn.Dropout(dropout), nn.Linear(16, 1))
        self.register_buffer("frequencies", torch.ones(4), persistent=False)  # a cache, as of rotary models
        self.history: list[Tensor] = []
        self.validated: list[Tensor] = []

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.validated.append(flat(self))
        self.log("validation", nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def on_train_batch_end(self, *args: Any) -> None:
        self.history.append(flat(self))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(samples(), batch_size=4, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        # Its own generator: validations must not move the random stream of what is trained.
        return DataLoader(samples(24), batch_size=4, generator=torch.Generator())


def flat(module: nn.Module) -> Tensor:
    """All parameters and floating-point buffers in one vector."""
    held = [value for value in module.state_dict().values() if value.is_floating_point()]
    return torch.cat([value.detach().flatten().clone() for value in held])


def fit(module: pl.LightningModule, strategy: Any, *, ckpt_path: Any = None, **options: Any) -> pl.Trainer:
    """Train on the ranks of a pool; a mapping is an algorithm, over small buckets."""
    if callable(strategy):
        strategy = strategy()
    if isinstance(strategy, dict):
        strategy = RelaxcommStrategy({"algorithm": strategy, "bucket_bytes": 512, "timeout_seconds": 60})
    torch.manual_seed(7 + int(os.environ["RANK"]))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    options = {"max_epochs": 2, **quiet, "enable_model_summary": False, "num_sanity_val_steps": 0, **options}
    devices = int(os.environ["WORLD_SIZE"])
    trainer = pl.Trainer(accelerator="cpu", devices=devices, strategy=strategy, **options)
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


def ddp() -> DDPStrategy:
    """What relaxcomm is compared with."""
    return DDPStrategy(find_unused_parameters=True)


def on_ranks(scenario: Callable[..., Any], *args: Any, size: int = SIZE) -> list[Any]:
    """What `scenario(rank, *args)` returns on each rank of a pool."""
    return run_ranks(_in_rank, size, scenario, size, args)


def _in_rank(rank: int, scenario: Callable[..., Any], size: int, args: tuple[Any, ...]) -> Any:
    with _launched(rank, size):
        return scenario(rank, *args)


@contextmanager
def _launched(rank: int, size: int) -> Iterator[None]:
    """As torchrun has it, around the process group that the pool has."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    env = {"TORCHELASTIC_RUN_ID": "test", **{name: str(value) for name, value in place.items()}}
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with mock.patch.dict(os.environ, env), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
