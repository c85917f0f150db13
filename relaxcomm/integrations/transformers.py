"""Transformers: a Trainer whose model exchanges by an algorithm, instead of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config
from relaxcomm.engine import Engine
from relaxcomm.errors import UsageError
from relaxcomm.integrations.accelerate import attach_with, check_replicated
from relaxcomm.integrations.accelerate_models import uncompiled
from relaxcomm.integrations.rank_states import load_from, save_to

LOGGED = ("bytes_sent", "synchronisations", "step_seconds", "exposed_communication_seconds")
"""Which of the engine's statistics a Trainer logs, each as `relaxcomm_NAME`."""

_OF_DDP = ("find_unused_parameters", "bucket_cap_mb", "broadcast_buffers", "static_graph")


class Trainer(transformers.Trainer):  # type: ignore[misc]  # it is Any where Transformers is missing
    """Transformers' Trainer, with an algorithm of relaxcomm's in the place of DistributedDataParallel.

    `train` attaches to the model, and closes the engine in the end; all else is Transformers'. Where replicas
    may differ, the model that is evaluated and saved is their mean, and checkpoints keep each rank's own
    beside it. For a subclass of Transformers' Trainer, put this one first:
    `class Mine(Trainer, Seq2SeqTrainer)`.

    Args:
        relaxcomm: the config that `relaxcomm.attach` takes.
        options: of the Trainer.

    Raises: CompositionError for FSDP, DeepSpeed and other parallelism, whose models are not replicated;
        UsageError for settings of DistributedDataParallel, and for algorithms that choose the batches.

    Reference: examples/frameworks/transformers, docs/integrations/transformers.md.
    """

    engine: Engine | None = None
    """The engine of the latest `train`; its statistics stay readable."""

    def __init__(
        self, *args: Any, relaxcomm: str | Path | Mapping[str, Any] | Algorithm | Config, **options: Any
    ) -> None:
        self._relaxcomm = relaxcomm
        self._attached: Engine | None = None
        super().__init__(*args, **options)

    def create_accelerator_and_postprocess(self) -> None:
        """Make the Accelerator, and refuse what it cannot do here."""
        super().create_accelerator_and_postprocess()
        check_replicated(self.accelerator)
        given = [f"ddp_{name}" for name in _OF_DDP if getattr(self.args, f"ddp_{name}", None) is not None]
        if given:
            raise UsageError(
                f"{', '.join(given)} would have no effect, since the model is not wrapped in "
                "DistributedDataParallel; leave them out"
            )

    def training_step(self, *args: Any, **options: Any) -> Any:
        """Train on a micro-batch; all but the last one of a step exchange nothing."""
        with self._exchanged_last():
            return super().training_step(*args, **options)

    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        """Evaluate or predict, with the mean model where replicas may differ."""
        with self._mean_model():
            output = super().evaluation_loop(*args, **options)
        if self._attached is not None:
            found = {name: one for name, one in output.metrics.items() if isinstance(one, int | float)}
            self._attached.observe_evaluation(**found)
        return output

    def save_model(self, *args: Any, **options: Any) -> None:
        """Save the model, the mean where replicas may differ; then every rank calls it."""
        with self._mean_model():
            super().save_model(*args, **options)

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Log, with the engine's statistics where the loss is logged."""
        if self.engine is not None and logs.keys() & {"loss", "train_loss"}:
            logs |= {f"relaxcomm_{name}": self.engine.statistics[name] for name in LOGGED}
        super().log(logs, *args, **options)

    def _inner_training_loop(self, *args: Any, **options: Any) -> Any:
        try:
            return super()._inner_training_loop(*args, **options)
        except BaseException as error:
            if self._attached is not None:
                self._attached.fail(error)
                self._attached = None
            raise

    def _wrap_model(self, model: nn.Module, training: bool = True, *args: Any, **options: Any) -> Any:
        model = super()._wrap_model(model, training, *args, **options)
        if not training:
            return model
        engine = attach_with(self.accelerator, uncompiled(model), [self.optimizer], self._relaxcomm)
        self.engine = self._attached = engine
        _check_batches(engine)
        # What is prepared for evaluation is never wrapped later on.
        return self.accelerator.prepare_model(model, evaluation_mode=True)

    def _finalize_training(self, *args: Any, **options: Any) -> Any:
        assert self._attached is not None, "_wrap_model was called"
        self._attached.close()
        self._attached = None
        return super()._finalize_training(*args, **options)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self._attached is not None:
            save_to(self._attached, Path(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self._attached is not None and checkpoint is not None:
            load_from(self._attached, Path(checkpoint))

    def _exchanged_last(self) -> AbstractContextManager[None]:
        """Where a backward goes on: it is exchanged if the optimizer steps after it."""
        every = self.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)
        if self._attached is None or self.accelerator.sync_gradients or every:
            return nullcontext()
        return self._attached.no_sync()

    def _mean_model(self) -> AbstractContextManager[None]:
        """Where the model is what all ranks have trained together."""
        engine = self._attached
        if engine is None or not engine.replicas_may_differ:
            return nullcontext()
        return engine.averaged()


def _check_batches(engine: Engine) -> None:
    """Raise UsageError for an algorithm that chooses the batches."""
    for algorithm in engine.settings.algorithms:
        if algorithm.chooses_batches:
            raise UsageError(
                f"{algorithm.name} chooses the batches, and a Trainer reads its own; use another algorithm, "
                "or relaxcomm.attach with engine.loader in a loop of your own"
            )
