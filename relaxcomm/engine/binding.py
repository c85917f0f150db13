"""An algorithm for a model, and on it."""

from __future__ import annotations

from torch import nn

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.network import Transport
from relaxcomm.replica.named_parameters import trainable
from relaxcomm.replica.replica import Replica
from relaxcomm.step.bound import Bound
from relaxcomm.step.replica_norms import ReplicaNorms
from relaxcomm.step.world import World


def fitted(model: nn.Module, algorithm: Algorithm) -> Algorithm:
    """The algorithm for this model, in whose order fragments are cut."""
    return algorithm.over({item.name: item.parameter.numel() for item in reversed(trainable(model))})


def bind(replica: Replica, transport: Transport, settings: Config) -> Bound:
    """The run's first algorithm on a model, with counts that begin at zero."""
    world = World(transport, Statistics(transport.counters), settings.topology)
    norms = ReplicaNorms(replica.parameters, world.statistics.latest)
    return Bound(fitted(replica.model, settings.algorithm), replica, world, norms)
