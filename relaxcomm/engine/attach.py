"""Attaching the engine to a training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config
from relaxcomm.config.unread_keys import check_size, check_workers, warn_of_idle_guard, warn_of_unread
from relaxcomm.engine.attaching import attach_arguments, device_checks
from relaxcomm.engine.attaching.attach_arguments import Given
from relaxcomm.engine.attaching.binding import bind, fitted
from relaxcomm.engine.attaching.connecting import connect
from relaxcomm.engine.attaching.consistency import compare, digest, elastic_facts, fingerprint, sharing_errors
from relaxcomm.engine.attaching.model_checks import check_buckets
from relaxcomm.engine.engine import Engine
from relaxcomm.engine.joining import join
from relaxcomm.engine.membership.elastic import Elastic, check_elastic
from relaxcomm.engine.reporting import run_warnings
from relaxcomm.engine.reporting.metering import Metering
from relaxcomm.engine.session import Session
from relaxcomm.errors import RelaxcommError
from relaxcomm.network import InProcessGroup, TorchTransport, Transport, elastic_store
from relaxcomm.replica.named_parameters import named_parameters, trainable
from relaxcomm.replica.replica import Replica
from relaxcomm.replica.sharding import place_shards
from relaxcomm.step import broadcasts, held_states
from relaxcomm.system.environment import address_to_join
from relaxcomm.system.mpi import unread_processes
from relaxcomm.system.slurm import unused_tasks
from relaxcomm.system.telling import tell


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None,
    config: str | Path | Mapping[str, Any] | Algorithm | Config,
    *,
    scaler: GradScaler | None = None,
    process_group: dist.ProcessGroup | InProcessGroup | Transport | None = None,
) -> Engine:
    """Let an algorithm exchange what this training loop makes.

    Broadcasts parameters and buffers from rank 0, then follows the loop through hooks. Without a
    process group it trains alone; under torchrun or Slurm's srun it initialises the default group itself,
    unless that was done. With RELAXCOMM_JOIN=HOST:PORT in the environment it joins the elastic run whose
    store is there, and takes over its model.

    Args:
        model: that the loop trains, already on its device, with its parameters frozen or not as they will be.
        optimizer: of this model's parameters; several, such as `[muon, adamw]`, make one step together, which
            begins with the first one's and ends when each has stepped once; None for algorithms that need
            only gradients.
        config: an algorithm's name, a YAML file, a mapping, an Algorithm or a Config.
        scaler: the GradScaler, if one is used; a step inside one that was not given is a UsageError.
        process_group: the ranks that take part, or a transport between them, which is closed with the engine;
            None for all. For a model that `fully_shard` has sharded over a dimension of a mesh: the ranks
            that hold the same shards; None for those along the mesh's other dimension.

    Returns: the engine; close it, or use it in a `with` block.

    Raises: ConfigError, CompositionError, UsageError: on every rank, also if only one rank's configuration
        is wrong or differs; for a model that is wrapped (DistributedDataParallel), attached already or a part
        of one, or sharded otherwise than by `fully_shard` over one dimension of a mesh. Model and optimizer
        are then as they were.

    Example:
        >>> import torch
        >>> from relaxcomm import attach, simulate
        >>> def train(group):
        ...     torch.manual_seed(group.rank())
        ...     model = torch.nn.Linear(2, 1)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     with attach(model, optimizer, "bsp", process_group=group):
        ...         for _ in range(3):
        ...             optimizer.zero_grad()
        ...             model(torch.randn(4, 2)).square().mean().backward()
        ...             optimizer.step()
        ...     return model.weight.detach()
        >>> first, second = simulate(train, 2)
        >>> torch.equal(first, second)
        True
    """
    given = attach_arguments.read(model, optimizer, config, scaler, process_group)
    if (address := address_to_join()) and process_group is None and not dist.is_initialized():
        settings = given.checked()
        return join(model, given.optimizers, scaler, settings, address)
    with ExitStack() as undo:
        try:
            transport, owned = connect(undo, given.model, given.to_meet, process_group, given.secret)
        except RelaxcommError as error:
            # Where this rank is at fault the others lack its secret, and only its own fault says why.
            raise (given.problem or error) from None
        facts = _agree(transport, given)
        settings = given.checked()
        if not (isinstance(config, Config) or transport.process.rank):  # `relaxcomm train` gives a Config
            warn_of_unread(settings)
            warn_of_idle_guard(settings)
        place_shards(model)
        broadcasts.broadcast(model, transport, settings.bucket_bytes)
        replica = Replica(model, given.optimizers, scaler, settings.bucket_bytes)
        if not transport.process.rank:
            algorithms = [fitted(replica.parameters, one) for one in settings.algorithms]
            run_warnings.warn_of_unselected(replica.parameters, algorithms)
        session = _begin(undo, transport, replica, settings, facts)
        engine = Engine(session, owns_default_group=owned)
        undo.pop_all()
    if not isinstance(config, Config) and not isinstance(process_group, Transport | InProcessGroup):
        _say_joined(transport, settings)
    return engine


def _agree(transport: Transport, given: Given) -> dict[str, str]:
    """What all ranks have in common, by name; with what is wrong on one, all end.

    Raises: ConfigError, CompositionError, UsageError: on every rank.
    """
    with sharing_errors(transport, "attach()") as told:
        settings = given.checked()
        named = named_parameters(given.model)
        gpu = device_checks.gpu_of(given.model, named, transport)
        size = transport.membership.world_size
        check_workers(settings, size)
        check_size(settings, given.origin, size)
        items = trainable(named)
        for one in settings.algorithms:
            check_buckets(items, fitted(items, one), settings, size)
        facts = fingerprint(given.model, named, settings, size)
        if settings.membership.elastic:
            check_elastic(transport)
        is_equal = not settings.algorithm.lets_replicas_differ
        moments = held_states.fingerprint(given.optimizers, named) if is_equal else None
        told.mine = digest(facts), gpu, moments
    digests, gpus, all_moments = zip(*told.everyone, strict=True)
    if len(set(digests)) > 1:
        compare(transport.gather_all(facts, "attach()"))
    device_checks.check_gpus(gpus)
    run_warnings.warn_of_unequal_moments(transport, all_moments)
    return facts


def _begin(
    undo: ExitStack, transport: Transport, replica: Replica, settings: Config, facts: dict[str, str]
) -> Session:
    """Bind the algorithm to the model, and follow the training loop."""
    bound = bind(replica, transport, settings)
    metering = Metering(bound, settings.metrics, settings.output)
    undo.callback(metering.close, "failed: attach did not succeed")
    elastic = None
    if settings.membership.elastic and isinstance(transport, TorchTransport):
        elastic = Elastic.begin(transport.rendezvous, settings)
        if not bound.world.rank:
            elastic_store.publish(transport.rendezvous, elastic_facts(facts), metering.name)
    return Session(bound, settings, metering, elastic)


def _say_joined(transport: Transport, settings: Config) -> None:
    """Say on rank 0 with how many others it trains: none, where a launcher's variables are missing."""
    membership, shards = transport.membership, transport.shards
    if transport.process.rank:
        return
    ranks = f"{membership.world_size} rank{'s' if membership.world_size > 1 else ''}"
    if shards is not None:
        ranks = f"{membership.world_size} replicas of {shards.membership.world_size} shards"
    others = "several are started by torchrun, or meet by init_process_group before attach"
    alone = "alone, so that nobody can join" if settings.membership.elastic else "alone"
    network = f"{alone}: {unread_processes() or unused_tasks() or others}"
    if isinstance(transport, TorchTransport):
        network = transport.backend
    tell(f"{ranks}, {settings.algorithm.name}, {network}")
