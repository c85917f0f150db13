"""Accelerate: an Accelerator whose models exchange by an algorithm, instead of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NoReturn

import accelerate
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config
from relaxcomm.data import ClientLoader, ShareLoader
from relaxcomm.engine import Engine, attach
from relaxcomm.errors import CompositionError, UsageError
from relaxcomm.integrations.accelerate_models import trained, uncompiled
from relaxcomm.integrations.rank_states import load_from, save_to


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # it is Any where Accelerate is missing
    """Accelerate's Accelerator, with an algorithm of relaxcomm's in the place of DistributedDataParallel.

    `prepare` attaches to each model that is given with its optimizers, to several together that one optimizer
    steps, and leaves models unwrapped.
    Precision, data loaders, schedulers, trackers and gathering are Accelerate's. `accumulate` and `no_sync`
    hold exchanges back; `save_state` and `load_state` keep what differs between ranks, too;
    `end_training` and `free_memory` close the engines.

    Args:
        relaxcomm: the config that `relaxcomm.attach` takes.
        options: of `accelerate.Accelerator`.

    Raises: CompositionError for FSDP, DeepSpeed, Megatron-LM and other parallelism, whose models are not
        replicated; UsageError for a model without its optimizers, and for DistributedDataParallelKwargs.

    Reference: examples/frameworks/accelerate, docs/integrations/accelerate.md.
    """

    def __init__(
        self, *, relaxcomm: str | Path | Mapping[str, Any] | Algorithm | Config, **options: Any
    ) -> None:
        super().__init__(**options)
        check_replicated(self)
        if self.ddp_handler is not None:
            raise UsageError(
                "DistributedDataParallelKwargs would have no effect, since no model is wrapped; leave them "
                "out: unused parameters need no setting, and compression is part of the algorithm"
            )
        self._relaxcomm = relaxcomm
        self._engines: dict[nn.Module, Engine] = {}

    @property
    def engine(self) -> Engine:
        """The engine of the model that was prepared.

        Raises: UsageError if none was, or several were.
        """
        engines = self._open_engines()
        if len(engines) != 1:
            raise UsageError(
                f"{len(engines)} models were prepared with their optimizers, and `engine` is that of "
                "one; call prepare(model, optimizer) first, or engine_of(model) where there are several"
            )
        return engines[0]

    def engine_of(self, model: nn.Module) -> Engine:
        """The engine of a prepared model.

        Raises: UsageError for another model.
        """
        engine = self._engines.get(uncompiled(model))
        if engine is None:
            raise UsageError(f"no prepare() was given {type(model).__name__} and its optimizers")
        return engine

    def prepare(self, *args: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
        """Prepare as Accelerate does, and attach to the models; see the class."""
        with ExitStack() as undo:
            for models, optimizers in trained(args):
                whole = models[0] if len(models) == 1 else nn.ModuleList(models)  # which nobody calls
                engine = undo.enter_context(attach_with(self, whole, optimizers, self._relaxcomm))
                for model in models:
                    self._engines[model] = engine
                    undo.callback(self._engines.pop, model)
            prepared = super().prepare(*args, device_placement=device_placement)
            undo.pop_all()
        return prepared

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Prepare as Accelerate does, except that nothing is wrapped in DistributedDataParallel."""
        is_trained = any(p.requires_grad for p in model.parameters())
        if is_trained and not (evaluation_mode or uncompiled(model) in self._engines):
            raise UsageError(
                f"{type(model).__name__} is prepared without its optimizers, so nothing would exchange it; "
                "give both to one prepare(model, optimizer, …), or call prepare_model(model, "
                "evaluation_mode=True) for one that is not trained"
            )
        prepared: nn.Module = super().prepare_model(model, device_placement, evaluation_mode=True)
        return prepared

    def prepare_data_loader(
        self, data_loader: DataLoader[Any], *args: Any, **options: Any
    ) -> DataLoader[Any]:
        """Share a loader among the ranks as Accelerate does."""
        if isinstance(data_loader, ShareLoader | ClientLoader):
            raise UsageError(
                "the loader is engine.loader's, and reads this rank's share already; do not prepare it, and "
                "move its batches to accelerator.device yourself"
            )
        prepared: DataLoader[Any] = super().prepare_data_loader(data_loader, *args, **options)
        return prepared

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Accumulate gradients: a backward in here exchanges nothing; `accumulate` enters it."""
        engine = self._engines.get(uncompiled(model))
        return super().no_sync(model) if engine is None else engine.no_sync()

    def join_uneven_inputs(self, *args: Any, **options: Any) -> NoReturn:
        """Refused: `engine.join` is for that."""
        raise UsageError(
            "join_uneven_inputs is of DistributedDataParallel; write `with accelerator.engine.join():`, with "
            "DataLoaderConfiguration(even_batches=False)"
        )

    def trigger_sync_in_backward(self, model: nn.Module) -> NoReturn:
        """Refused: with an engine it is the place of a backward that counts, not that of its forward."""
        raise UsageError(
            "trigger_sync_in_backward is of DistributedDataParallel, where a forward decides; here a "
            "backward does: write `with accelerator.no_sync(model):` around each backward but the last"
        )

    def save_state(self, *args: Any, **options: Any) -> Path:
        """Save as Accelerate does, and what each rank needs to go on; every rank calls it between steps."""
        folder = Path(super().save_state(*args, **options))
        for index, engine in enumerate(self._open_engines()):
            save_to(engine, folder, index)
        return folder

    def load_state(self, *args: Any, **options: Any) -> None:
        """Go on from what `save_state` has saved; every rank calls it."""
        folders: list[str] = []
        handle = self.register_load_state_pre_hook(lambda models, folder: folders.append(folder))
        try:
            super().load_state(*args, **options)
        finally:
            handle.remove()
        for index, engine in enumerate(self._open_engines()):
            load_from(engine, Path(folders[0]), index)

    def free_memory(self, *objects: Any) -> Any:
        """Close the engines, and release all that was prepared."""
        while self._engines:
            self._engines.popitem()[1].close()
        return super().free_memory(*objects)

    def end_training(self) -> None:
        """Close the engines, and end as Accelerate does: trackers, process group."""
        for engine in self._engines.values():
            engine.close()
        super().end_training()

    def _open_engines(self) -> list[Engine]:
        """Each once, in the order of their models."""
        return list(dict.fromkeys(self._engines.values()))


def attach_with(
    accelerator: accelerate.Accelerator, model: nn.Module, optimizers: Sequence[Optimizer], config: Any
) -> Engine:
    """Attach as an Accelerator has been set up: on its device, with its GradScaler and its processes.

    Args:
        accelerator: that prepares the rest.
        model: not wrapped.
        optimizers: of its parameters, prepared or not.
        config: as `relaxcomm.attach` has it.

    Raises: as `relaxcomm.attach`; UsageError where Accelerate has not seen all processes, and for elastic
        membership.
    """
    if accelerator.device_placement:
        model.to(accelerator.device)
    inner = [one.optimizer if isinstance(one, AcceleratedOptimizer) else one for one in optimizers]
    with ExitStack() as undo:
        engine = undo.enter_context(attach(model, inner, config, scaler=accelerator.scaler))
        if engine.settings.membership.elastic:
            raise UsageError(
                "membership: {elastic: true} cannot be honoured: Accelerate gathers among all processes that "
                "were started, and would wait for those that are lost; leave it out, and begin again from a "
                "checkpoint"
            )
        if engine.world.size != accelerator.num_processes:
            raise UsageError(
                f"{engine.world.size} ranks were started, and Accelerate sees {accelerator.num_processes} "
                "process(es), so that all would read the same data; without GPUs, write Accelerator(cpu=True)"
            )
        undo.pop_all()
    return engine


def check_replicated(accelerator: accelerate.Accelerator) -> None:
    """Refuse an Accelerator that shards or splits models.

    Raises: CompositionError.
    """
    kind = accelerator.distributed_type.value
    if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"):
        raise CompositionError(
            f"Accelerate was set up for {kind}, which shards or exchanges by itself; take its plugin out of "
            "the script and out of `accelerate config`, so that every process holds the whole model"
        )
    if accelerator.parallelism_config is not None:
        raise CompositionError(
            "Accelerate was given a ParallelismConfig, which splits models over processes; leave it out, so "
            "that every process holds the whole model"
        )
