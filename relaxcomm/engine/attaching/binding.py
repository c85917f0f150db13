"""An algorithm for a model, and on it."""

from __future__ import annotations

from collections.abc import Sequence

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.network import Transport
from relaxcomm.replica.replica import Replica
from relaxcomm.step.bound import Bound
from relaxcomm.step.replica_norms import ReplicaNorms
from relaxcomm.step.world import World
from relaxcomm.tensors.items import Item


def fitted(parameters: Sequence[Item], algorithm: Algorithm) -> Algorithm:
    """The algorithm for a model, in whose order fragments are cut.

    Args:
        parameters: that are trained, last registered first.
        algorithm: for any model.
    """
    return algorithm.over({item.name: item.parameter.numel() for item in reversed(parameters)})


def bind(replica: Replica, transport: Transport, settings: Config) -> Bound:
    """The run's first algorithm on a model, with counts that begin at zero."""
    world = World(transport, Statistics(transport.counters), settings.topology)
    norms = ReplicaNorms(replica.parameters, world.statistics.latest)
    return Bound(fitted(replica.parameters, settings.algorithm), replica, world, norms)
