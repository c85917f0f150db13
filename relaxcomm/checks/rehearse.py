"""A short training run on simulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from relaxcomm.checks.trial_problem import BUCKET_BYTES, Rank, excess, plain_sgd, quietly, settings_of
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import UsageError
from relaxcomm.network import InProcessGroup
from relaxcomm.topology import Topology


@dataclass(frozen=True)
class Rehearsal:
    """What a short run came to.

    Args:
        loss: of the mean model, above the least possible one; 1 is that of a model of zeros.
        exchanges: steps in which something was exchanged, on rank 0.
        bytes_sent: in training, by rank 0.
        replicas_equal: whether all ranks held the same parameters after the last step.

    Example:
        >>> from relaxcomm import rehearse
        >>> rehearse("bsp").replicas_equal
        True
    """

    loss: float
    exchanges: int
    bytes_sent: int
    replicas_equal: bool


def rehearse(
    algorithm: Algorithm | str | Mapping[str, Any],
    *,
    epochs: int = 3,
    workers: int = 3,
    topology: Topology | str | Mapping[str, Any] | None = None,
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
) -> Rehearsal:
    """Train a small linear model on simulated ranks, in well under a second.

    The problem is least squares with 52 parameters and 96 samples, in batches of 8 a rank; with 3 workers an
    epoch has 4 steps. Gradients lie in two buckets.

    Args:
        algorithm: its name, `{"name": "local_sgd", "steps": 4}`, an `Algorithm`, or the mapping that `attach`
            takes, `{"algorithm": …, "topology": …}`.
        epochs: passes over the data, or rounds of an algorithm with clients.
        workers: number of ranks.
        topology: of the ranks; the mapping's, or `complete`, unless given.
        make_optimizer: of the parameters of a rank; SGD with the learning rate 0.1 unless given.

    Returns: what it came to.

    Raises: CompositionError, TopologyError or ConfigError for what `attach` refuses; UsageError for fewer
        than one worker or epoch.

    Example:
        >>> from relaxcomm import rehearse
        >>> rehearse({"name": "local_sgd", "steps": 4}).exchanges
        3
    """
    if epochs < 1:
        raise UsageError(f"{epochs!r} epochs cannot be rehearsed; give at least 1")
    settings = settings_of(algorithm, topology, bucket_bytes=BUCKET_BYTES)

    def program(group: InProcessGroup) -> tuple[Tensor, Rehearsal]:
        rank = Rank(group, settings, make_optimizer or plain_sgd)
        with rank.engine as engine:
            begun = engine.statistics["bytes_sent"]  # the parameters of rank 0, to all
            rank.epochs(epochs)
            last = rank.parameters
            with engine.averaged():
                loss = excess(rank.parameters)
        counts = engine.statistics
        sent = int(counts["bytes_sent"] - begun)
        return last, Rehearsal(loss, int(counts["synchronisations"]), sent, replicas_equal=True)

    ranks = quietly(program, workers)
    equal = all(torch.equal(last, ranks[0][0]) for last, _ in ranks)
    return replace(ranks[0][1], replicas_equal=equal)
