"""Attaching the engine to a training loop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from relaxcomm.algorithm import Algorithm
from relaxcomm.config import Config, load
from relaxcomm.engine import replicas
from relaxcomm.engine.agreement import compare, share
from relaxcomm.engine.engine import Engine, attached
from relaxcomm.engine.fitting import check_model, check_switchable, fitted
from relaxcomm.engine.metering import Metering
from relaxcomm.engine.model import named_parameters
from relaxcomm.engine.run import Run
from relaxcomm.errors import CompositionError, RelaxcommError, UsageError
from relaxcomm.transport import InProcessGroup, TorchTransport, Transport, single


def attach(
    model: nn.Module,
    optimizer: Optimizer | None,
    config: str | Path | Mapping[str, Any] | Algorithm | Config,
    *,
    scaler: GradScaler | None = None,
    process_group: dist.ProcessGroup | InProcessGroup | Transport | None = None,
) -> Engine:
    """Let an algorithm exchange what this training loop makes.

    Broadcasts parameters and buffers from rank 0, then follows the loop through hooks. Without a
    process group it trains alone; under torchrun it initialises the default group itself, unless
    that was done.

    Args:
        model: on its device, with its parameters frozen or not as they will be.
        optimizer: of this model's parameters; None for algorithms that need only gradients.
        config: a YAML file, a mapping, an Algorithm or a Config.
        scaler: the GradScaler, if one is used.
        process_group: the ranks that take part, or a transport between them, which is closed with the engine;
            None for all.

    Returns: the engine; close it, or use it in a `with` block.

    Raises: ConfigError, CompositionError: on every rank, also if only one rank's configuration is
        wrong or differs.

    Example:
        >>> engine = relaxcomm.attach(model, optimizer, {"algorithm": "bsp"})
    """
    settings: Config | None = None
    problem: RelaxcommError | None = None
    try:
        settings = config if isinstance(config, Config) else load(config)
        _check(model, optimizer, settings)
        if settings.metrics is not None:
            settings.metrics.check_files()
    except RelaxcommError as error:
        problem = error
    transport, owned = _connect(model, settings, process_group)
    try:
        facts: dict[str, str] = {}
        if settings is not None:
            try:
                size = transport.membership.world_size
                settings.check_world_size(size)
                facts = _fingerprint(model, settings, size)
            except RelaxcommError as error:
                problem = problem or error
        compare(share(transport, problem, facts))
        assert settings is not None
        replicas.broadcast(model, transport, settings.bucket_bytes)
        run = Run(
            model,
            optimizer,
            fitted(model, settings.algorithm),
            transport,
            scaler=scaler,
            bucket_bytes=settings.bucket_bytes,
            topology=settings.topology,
            drift_guard=settings.drift_guard,
        )
        metering = Metering(run, settings.metrics, settings.output)
        return Engine(run, settings=settings, metering=metering, owns_default_group=owned)
    except BaseException:
        transport.close()
        raise


def _check(model: nn.Module, optimizer: Optimizer | None, settings: Config) -> None:
    """Refuse a model that is taken, or that an algorithm cannot work with."""
    if model in attached:
        raise UsageError("an engine is attached to this model already; close it first")
    for algorithm in settings.algorithms:
        check_model(model, optimizer, fitted(model, algorithm))
        if settings.phases:
            check_switchable(algorithm)


def _connect(model: nn.Module, settings: Config | None, group: Any) -> tuple[Transport, bool]:
    if isinstance(group, Transport):
        return group, False
    if isinstance(group, InProcessGroup):
        return group.transport(), False
    owned = False
    if group is None and not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return single(), False
        dist.init_process_group("gloo")
        owned = True
    options = settings or load({"algorithm": "bsp"})  # a broken configuration is reported to the peers, too
    device = next((p.device for p in model.parameters()), None)
    if device is None:
        raise CompositionError("the model has no parameters")
    transport = TorchTransport(
        group,
        device=device,
        backend=options.backend,
        timeout_seconds=options.timeout_seconds,
        debug=options.debug,
    )
    return transport, owned


def _fingerprint(model: nn.Module, settings: Config, world_size: int) -> dict[str, str]:
    """What must be the same on all ranks, as readable text."""
    facts = {"algorithm": repr(settings.algorithm), "phases": repr(settings.phases)}
    facts |= {"bucket_bytes": str(settings.bucket_bytes)}
    facts["drift_guard"] = str(settings.drift_guard)
    facts["metrics"] = "off" if settings.metrics is None else "on"  # the rest may differ between hosts
    facts |= settings.describe_topologies(world_size)
    for name, p in named_parameters(model):
        kind = "trainable" if p.requires_grad else "frozen"
        facts[f"parameter {name}"] = f"{list(p.shape)} {p.dtype} strides {list(p.stride())} {kind}"
    for name, b in model.named_buffers():
        facts[f"buffer {name}"] = f"{list(b.shape)} {b.dtype}"
    return facts
