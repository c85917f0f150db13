"""Lightning: `Trainer(strategy="relaxcomm")`, or `Trainer(strategy=RelaxcommStrategy("local_sgd"))`."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy, ParallelStrategy, StrategyRegistry
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from relaxcomm import checkpoint as checkpoints
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config
from relaxcomm.engine import Engine
from relaxcomm.engine.attach import attach
from relaxcomm.errors import ConfigError
from relaxcomm.integrations.lightning_averages import Averages, check_swapped_back, follow_swaps
from relaxcomm.integrations.lightning_checks import (
    EvenEpochs,
    check_batches,
    check_callbacks,
    check_config,
    check_optimizers,
    folder_of_ranks,
)
from relaxcomm.integrations.lightning_mean import MeanModel

_OPTIONS = {
    *inspect.signature(ParallelStrategy).parameters,
    "process_group_backend",
    "timeout",
    "start_method",
}
_KEY = "relaxcomm"  # in a checkpoint: the name of the folder with the ranks' own states
_AVERAGES = "relaxcomm_averages"  # in a checkpoint: that these are in the folder, too


class RelaxcommStrategy(DDPStrategy):  # type: ignore[misc]  # it is Any where Lightning is missing
    """Trains as DDPStrategy does, but what the ranks exchange, and when, is up to an algorithm.

    Args:
        config: what `relaxcomm.attach` takes: an algorithm's name, a YAML file, a mapping or an Algorithm.
        options: of DDPStrategy, such as `start_method`, without those of DistributedDataParallel.

    Raises: ConfigError for an option that would have no effect.

    Reference: docs/integrations/lightning.md.
    """

    def __init__(
        self, config: str | Path | Mapping[str, Any] | Algorithm | Config = "auto", **options: Any
    ) -> None:
        if unknown := sorted(options.keys() - _OPTIONS):
            raise ConfigError(
                f"RelaxcommStrategy has no option {unknown[0]!r}, and no DistributedDataParallel that would "
                f"take it; it has config, {', '.join(sorted(_OPTIONS))}"
            )
        super().__init__(**options)
        self.config = config
        self.engine: Engine | None = None
        """The engine of the latest `fit`; its statistics stay readable when that has ended."""
        self._mean = MeanModel(self._open_engine)
        self._loaded_from: str | Path = ""
        self._even = EvenEpochs(self._open_engine)

    def configure_ddp(self) -> None:
        """Do not wrap the model."""

    def setup(self, trainer: pl.Trainer) -> None:
        """Attach an engine to the model and the optimizers that `fit` begins with."""
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        check_optimizers(self.optimizers)
        scaler = getattr(self.precision_plugin, "scaler", None)
        with ExitStack() as undo:
            engine = undo.enter_context(
                attach(self.lightning_module, self.optimizers, self.config, scaler=scaler)
            )
            check_config(engine.settings)
            check_callbacks(trainer.callbacks, engine.settings)
            undo.pop_all()
        self.engine = engine
        if self._even not in trainer.callbacks:
            trainer.callbacks.insert(0, self._even)
        follow_swaps(trainer.callbacks)
        if engine.algorithm.lets_replicas_differ and (names := self._averages().names):
            rank_zero_warn(
                f"{', '.join(names)}: each rank averages its own replica and validates its own average, and "
                "the .ckpt has rank 0's; fit ends with their mean"
            )

    def on_train_start(self) -> None:
        """Refuse numbers of batches that differ: Lightning's own collectives would wait for ever."""
        engine = self._open_engine()
        assert engine is not None
        check_batches(engine, self.lightning_module.trainer.num_training_batches)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients; nothing is exchanged inside."""
        assert self.engine is not None
        with self.engine.no_sync():
            yield

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: pl.LightningModule | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run forward and backward, then step; with a GradScaler Lightning does so by itself."""
        module = self.lightning_module
        if module.automatic_optimization and module.trainer.fit_loop._skip_backward:
            return closure()  # for BatchNorm's statistics alone, after SWA: no gradients, so no step
        if getattr(self.precision_plugin, "scaler", None) is not None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        loss = self.precision_plugin._wrap_closure(model or module, optimizer, closure)
        optimizer.step(**kwargs)
        return loss

    def on_validation_start(self) -> None:
        """Validate the mean model, where replicas differ."""
        self._mean.hold()

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """One batch; a checkpoint in the middle of a validation has let go of the mean model."""
        self._mean.hold()
        return super().validation_step(*args, **kwargs)

    def on_validation_end(self) -> None:
        """Go on with this rank's own replica."""
        self._mean.let_go()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The model as a checkpoint has it: the mean of all replicas, which was validated, too."""
        was_held = self._mean.is_held
        self._mean.hold()
        state: dict[str, Any] = super().lightning_module_state_dict()
        if self._mean.is_held:  # in the replica's memory, which becomes the replica again
            state = {name: v.clone() if isinstance(v, Tensor) else v for name, v in state.items()}
        if not was_held:
            self._mean.let_go()
        return state

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Save what Lightning does, and beside it all ranks' own states, which `fit(ckpt_path=…)` needs."""
        if (engine := self._open_engine()) is not None and "optimizer_states" in checkpoint:
            check_swapped_back(self.lightning_module.trainer.callbacks)
            self._mean.let_go()
            averages = self._averages()
            others: dict[str, Any] = {"averages": averages} if averages.names else {}
            checkpoint[_KEY] = checkpoints.save(engine, folder_of_ranks(filepath), **others).name
            checkpoint[_AVERAGES] = bool(others)
        elif "optimizer_states" in checkpoint and self.engine is not None and not self.engine.closed:
            rank_zero_warn(f"{filepath} has rank 0's state alone: the run was interrupted")
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read what Lightning has saved."""
        self._loaded_from = checkpoint_path
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)
        return loaded

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Go on from this rank's own state; without one, as from a checkpoint of DDP, from the model's."""
        super().load_optimizer_state_dict(checkpoint)
        if (name := checkpoint.get(_KEY)) is None:
            return
        assert self.engine is not None
        folder = folder_of_ranks(self._loaded_from) / name
        others = {"averages": self._averages()} if checkpoint.get(_AVERAGES) else {}
        if checkpoints.load(self.engine, folder, **others) is None:
            raise ConfigError(
                f"{self._loaded_from} goes with the states of the ranks in {folder}, which is not there; "
                "keep the folder beside the file, or begin anew from its model: load_from_checkpoint"
            )

    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Delete it, and the ranks' states beside it."""
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            shutil.rmtree(folder_of_ranks(filepath), ignore_errors=True)

    def on_exception(self, exception: BaseException) -> None:
        """Let the other ranks know, and restore model and optimizers."""
        self._mean.let_go()
        if self.engine is not None:
            self.engine.fail(exception)
        super().on_exception(exception)

    def teardown(self) -> None:
        """End with the mean model, before it is moved off the device."""
        if self.engine is not None:
            self.engine.close()
        super().teardown()

    def _averages(self) -> Averages:
        return Averages(self.lightning_module.trainer.callbacks)

    def _open_engine(self) -> Engine | None:
        """The engine of a `fit` that goes on, on all ranks."""
        if self.engine is None or self.engine.closed:
            return None
        is_interrupted = self.lightning_module.trainer.state.status == TrainerStatus.INTERRUPTED
        return None if is_interrupted else self.engine


class LogStatistics(pl.Callback):  # type: ignore[misc]  # as above
    """Logs rank 0's `engine.statistics` to the Trainer's loggers, as `relaxcomm/bytes_sent` and so on."""

    def __init__(self) -> None:
        self._step = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Every `log_every_n_steps` steps, once."""
        step = trainer.global_step
        if step % trainer.log_every_n_steps == 0 and step != self._step:
            self._step = step
            found = {f"relaxcomm/{name}": value for name, value in trainer.strategy.engine.statistics.items()}
            for logger in trainer.loggers:
                logger.log_metrics(found, step)


StrategyRegistry.register("relaxcomm", RelaxcommStrategy, "relaxcomm with `auto`, which measures and chooses")
