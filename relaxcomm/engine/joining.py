"""A worker that joins a run which trains already."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from relaxcomm.config import Config
from relaxcomm.engine.attaching.binding import bind
from relaxcomm.engine.attaching.connecting import transport_options
from relaxcomm.engine.attaching.consistency import compare, elastic_facts, fingerprint
from relaxcomm.engine.engine import Engine
from relaxcomm.engine.membership.elastic import Elastic
from relaxcomm.engine.reporting.metering import Metering
from relaxcomm.engine.session import Session
from relaxcomm.errors import ConfigError, worded
from relaxcomm.network import TorchTransport, elastic_store
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.replica.named_parameters import named_parameters
from relaxcomm.replica.replica import Replica
from relaxcomm.system.telling import tell


def join(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    scaler: GradScaler | None,
    settings: Config,
    address: str,
) -> Engine:
    """Take part in an elastic run, as one more rank; its model takes the place of this one's.

    Args:
        model, optimizers, scaler: as all ranks have them.
        settings: as all ranks have them.
        address: HOST:PORT of the store in which the ranks agree.

    Raises: ConfigError for another model or configuration than the run has; CommunicationError if nobody
        answers, or admits this worker within `timeout_seconds`.
    """
    _check(settings)
    secret = settings.membership.read_secret()
    store = elastic_store.connect(address, settings.timeout_seconds, secret)
    run = elastic_store.find(store, address, settings.timeout_seconds)
    mine = elastic_facts(fingerprint(model, named_parameters(model), settings, run.size))
    compare([run.facts, mine], "join with the run's model and configuration")
    elastic = Elastic.begin(
        elastic_store.rendezvous_of(store, run, settings.timeout_seconds, secret), settings
    )
    replica = Replica(model, tuple(optimizers), scaler, settings.bucket_bytes)
    try:
        session = elastic.join(lambda rendezvous: _meet(rendezvous, elastic, replica, settings, run.shown_as))
    except BaseException as error:
        elastic.generations.leave(f"failed: {worded(error)}")
        raise
    world = session.world
    tell(
        f"worker {elastic.generation.workers[world.rank]} has joined as rank {world.rank} of {world.size}, "
        f"{session.bound.algorithm.name}, from step {world.statistics.steps}"
    )
    return Engine(session, owns_default_group=False)


def _meet(
    rendezvous: Rendezvous, elastic: Elastic, replica: Replica, settings: Config, shown_as: str
) -> Session:
    """Meet the others, and take over their state."""
    with ExitStack() as undo:
        transport = TorchTransport(rendezvous, **transport_options(replica.model, settings))
        undo.callback(transport.close)
        bound = bind(replica, transport, settings)
        worker = elastic.generation.workers[bound.world.rank]
        metering = Metering(bound, settings.metrics, settings.output, joined=(worker, shown_as))
        undo.callback(metering.close, "failed: it has not joined")
        session = Session(bound, settings, metering, elastic)
        undo.callback(session.detach)
        session.join()
        undo.pop_all()
    return session


def _check(settings: Config) -> None:
    alone = next((one.name for one in settings.algorithms if not one.is_collective), None)
    if alone is not None:
        raise ConfigError(
            f"nobody can join a run with {alone}: its workers never exchange all together, when they could "
            "take another one in; start the run again from a checkpoint, with more workers"
        )
    if not settings.membership.elastic:
        raise ConfigError(
            f"RELAXCOMM_JOIN is {os.environ['RELAXCOMM_JOIN'][:100]!r}, but membership.elastic is false; "
            "only elastic runs can be joined: set membership: {elastic: true}, or unset the variable"
        )
