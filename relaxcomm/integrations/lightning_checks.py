"""What Lightning's loop cannot honour is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from lightning.pytorch.callbacks import BaseFinetuning, ModelPruning
from torch.optim import Optimizer

from relaxcomm.config import Config
from relaxcomm.engine import Engine
from relaxcomm.errors import CompositionError, ConfigError, UsageError


def check_optimizers(optimizers: Sequence[Optimizer]) -> None:
    """Refuse optimizers that call forward and backward themselves, several times a step.

    Raises: CompositionError.
    """
    for optimizer in optimizers:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise CompositionError(
                f"{type(optimizer).__name__} runs forward and backward several times in a step, which the "
                "engine cannot follow; use an optimizer that steps without a closure"
            )


def check_config(settings: Config) -> None:
    """Refuse what Lightning's loop has no room for.

    Raises: ConfigError, CompositionError.
    """
    for algorithm in settings.algorithms:
        if algorithm.chooses_batches:
            raise CompositionError(
                f"{algorithm.name} chooses the batches by engine.loader, and Lightning counts a loader's "
                "batches before it begins; name another algorithm, or attach in a loop of your own"
            )
    if settings.membership.elastic:
        raise ConfigError(
            "membership.elastic: Lightning's own collectives wait for ranks that are lost; leave it out, and "
            "have torchrun --max-restarts start all of them again, with fit(ckpt_path='last')"
        )


def check_callbacks(callbacks: Sequence[pl.Callback], settings: Config) -> None:
    """Refuse callbacks that have parameters train which the engine does not know, or replicas part.

    Raises: UsageError.
    """
    differing = [
        one.name for one in settings.algorithms if one.lets_replicas_differ or one.planner is not None
    ]
    for callback in callbacks:
        if isinstance(callback, BaseFinetuning):
            raise UsageError(
                f"{type(callback).__name__} freezes parameters before the engine is attached, so that "
                "nothing would exchange them when they train later; give the optimizer all parameters, "
                "freeze in on_train_start and unfreeze in on_train_epoch_start, or call fit once with them "
                "frozen and once without"
            )
        if isinstance(callback, ModelPruning) and differing:
            raise UsageError(
                f"{type(callback).__name__} masks each rank's own replica, and with {differing[0]} replicas "
                "may differ, so that masks would; name bsp or another algorithm that keeps replicas "
                "equal, or prune by torch.nn.utils.prune inside `with trainer.strategy.engine.averaged():`"
            )


def check_batches(engine: Engine, batches: float) -> None:
    """Refuse numbers of batches that differ: Lightning's own collectives would wait for ever.

    Args:
        engine: every rank's, all of which come here.
        batches: this rank's, in an epoch; infinity where its loader has no length.

    Raises: UsageError, on every rank.
    """
    counts = engine.together(lambda: engine.world.gather(batches, "the number of batches"))
    if len(set(counts)) > 1:
        raise UsageError(
            f"the ranks have {', '.join(map(str, counts))} training batches, and Lightning has them meet "
            "before each; give all as many, as Trainer(use_distributed_sampler=True) does, or set "
            "Trainer(limit_train_batches=…)"
        )


def folder_of_ranks(filepath: str | Path) -> Path:
    """Where the ranks' states lie that belong to a checkpoint.

    Raises: ConfigError for a place that is no file system's.
    """
    system, path = url_to_fs(str(filepath))
    if not isinstance(system, LocalFileSystem):
        raise ConfigError(
            f"{filepath} is in no folder of a file system, in which the ranks could leave their own states; "
            "give ModelCheckpoint a dirpath that all ranks see, or save_weights_only=True"
        )
    return Path(f"{Path(path).resolve()}.ranks")  # of what last.ckpt links to


class EvenEpochs(pl.Callback):  # type: ignore[misc]  # it is Any where Lightning is missing
    """Compares the ranks' numbers of batches where they may change: loaders that are made anew, or have none.

    Args:
        engine: gives that of a `fit` that goes on.
    """

    def __init__(self, engine: Callable[[], Engine | None]) -> None:
        self._engine = engine

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Where the loaders are new, their lengths may be."""
        engine = self._engine()
        if engine is not None and trainer.reload_dataloaders_every_n_epochs:
            check_batches(engine, trainer.num_training_batches)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Meet at the end of an epoch, before Lightning does, whose wait for a rank has no near end."""
        engine = self._engine()
        if engine is not None and trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            event = f"the end of an epoch of {batch_idx + 1} batches, of which all need as many"
            engine.together(lambda: engine.world.meet(event))
