"""torchtitan's Trainer, whose replicas exchange by an algorithm; inside a replica it shards as always."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torchtitan import trainer as titan
from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.tools.utils import device_type

from relaxcomm.engine import Engine, attach
from relaxcomm.errors import CheckpointError
from relaxcomm.integrations.torchtitan_checks import check, num_replicas

_KEY = "relaxcomm"
"""Under which a checkpoint has what each rank needs."""


class Trainer(titan.Trainer):  # type: ignore[misc]  # torchtitan is not there where mypy runs
    """`torchtitan.trainer.Trainer` with one more key in its configuration.

    `parallelism.data_parallel_replicate_degree` says how many replicas there are. Each is a world of its own
    to torchtitan, but for the data, of which it reads its share.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(titan.Trainer.Config):  # type: ignore[misc]
        """torchtitan's, and what `relaxcomm.attach` takes."""

        relaxcomm: str = "bsp"
        """An algorithm's name or a YAML file; set in Python also a mapping or an Algorithm."""

    engine: Engine | None = None
    """From the first step on."""
    checkpointer: Any
    loss_fn: Any

    def __init__(self, config: Any) -> None:
        check(config)
        replicas, batch = num_replicas(config), config.training.global_batch_size
        training = replace(config.training, global_batch_size=batch // replicas if batch > 0 else batch)
        self._saved, self._num_backwards = b"", 0
        super().__init__(replace(config, training=training, dataloader=_Share(config.dataloader, replicas)))
        self.checkpointer = _Checkpointer(self.checkpointer, self)
        log = self.metrics_processor.log
        self.metrics_processor.log = lambda *values, extra_metrics=None, **options: log(
            *values, extra_metrics={**(extra_metrics or {}), **self._statistics()}, **options
        )

    def init_distributed(self) -> ParallelDims:
        whole = super().init_distributed()
        size = whole.world_size // whole.dp_replicate
        names = ("replicate", "world")
        self._mesh = init_device_mesh(device_type, (whole.dp_replicate, size), mesh_dim_names=names)
        degrees = {
            name: getattr(whole, name) for name in ("dp_shard", "cp", "tp", "pp", "ep", "spmd_backend")
        }
        return _ReplicaDims(dp_replicate=1, world_size=size, ranks=self._mesh["world"], **degrees)

    def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
        """Attach: torchtitan asks for data when it has loaded its checkpoint, if there is one."""
        self.engine = attach(
            self.model_parts[0],
            list(self.optimizers.optimizers),
            self.config.relaxcomm,
            process_group=self._mesh["replicate"].get_group(),
        )
        self.loss_fn = _unsynchronised(self.loss_fn, self.engine)
        if self._saved:
            self.engine.load_run_state_dict(torch.load(io.BytesIO(self._saved), weights_only=True))
            self._saved = b""
        batches: Iterator[Any] = super().batch_generator(data_iterable)
        return batches

    def train(self) -> None:
        """Tell the other ranks at once if this one fails; `close` would meet them first."""
        try:
            super().train()
        except BaseException as error:
            if self.engine is not None:
                self.engine.fail(error)
            raise

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        self._num_backwards = 0
        super().train_step(data_iterator)

    def forward_backward_step(self, **batch: Any) -> torch.Tensor:
        """Exchange in the last of the backward passes that make a step."""
        assert self.engine is not None
        self._num_backwards += 1
        is_last = self._num_backwards == self.gradient_accumulation_steps
        with nullcontext() if is_last else self.engine.no_sync():
            loss: torch.Tensor = super().forward_backward_step(**batch)
        return loss

    def hold(self) -> None:
        """Keep all that this rank needs to go on as it is now, for the checkpoint that follows."""
        assert self.engine is not None
        file = io.BytesIO()
        torch.save(self.engine.run_state_dict(), file)
        self._saved = file.getvalue()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), _key(): self._saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._saved = state_dict[_key()]

    def close(self) -> None:
        """End with the mean model; what torchtitan has opened is closed also if the ranks do not meet."""
        try:
            if self.engine is not None:
                self.engine.close()
        finally:
            super().close()

    def _statistics(self) -> dict[str, float]:
        assert self.engine is not None
        return {f"relaxcomm/{name}": value for name, value in self.engine.statistics.items()}


def _unsynchronised(loss_fn: Any, engine: Engine) -> Any:
    """A loss that runs backward passes of its own, chunk by chunk, before the one that ends the step."""
    if not isinstance(loss_fn, ChunkedLossWrapper):
        return loss_fn

    def whole(*values: Any, **options: Any) -> Any:
        with engine.no_sync():
            return loss_fn(*values, **options)

    return whole


@dataclass
class _ReplicaDims(ParallelDims):  # type: ignore[misc]
    """The degrees and meshes of one replica.

    Args:
        ranks: of it, as a mesh of one dimension.
    """

    ranks: DeviceMesh | None = None

    def build_mesh(self) -> DeviceMesh:
        """Torchtitan's, of these ranks in the place of all."""
        made = parallel_dims.init_device_mesh
        parallel_dims.init_device_mesh = lambda *_, **__: self.ranks
        try:
            mesh: DeviceMesh = super().build_mesh()
            return mesh
        finally:
            parallel_dims.init_device_mesh = made


class _Share:
    """A dataloader's configuration that builds it for the data of all replicas."""

    def __init__(self, config: Any, replicas: int) -> None:
        self._config, self._replicas = config, replicas

    def build(self, *, dp_world_size: int, dp_rank: int, **others: Any) -> Any:
        replica = dist.get_rank() * self._replicas // dist.get_world_size()
        return self._config.build(
            dp_world_size=dp_world_size * self._replicas, dp_rank=replica * dp_world_size + dp_rank, **others
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


class _Checkpointer:
    """Torchtitan's, which saves the mean model, and each rank's own state beside it."""

    def __init__(self, inner: Any, trainer: Trainer) -> None:
        self._inner, self._trainer = inner, trainer

    def load(self, step: int = -1) -> bool:
        try:
            return bool(self._inner.load(step=step))
        except CheckpointException as error:
            if _KEY not in str(error):
                raise
            raise CheckpointError(
                f"the checkpoint has no {_key()}: it was saved without relaxcomm, or by another number of "
                "ranks; to begin with its model alone give checkpoint.initial_load_path and another folder"
            ) from None

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        engine, saved = self._trainer.engine, False
        if engine is None or not self._inner._should_save(curr_step, last_step):
            return bool(self._inner.save(curr_step, last_step))
        self._trainer.hold()
        with engine.averaged():
            saved = bool(self._inner.save(curr_step, last_step))
            self._inner.maybe_wait_for_staging()
        return saved

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _key() -> str:
    return f"{_KEY}-{dist.get_rank()}-of-{dist.get_world_size()}"
