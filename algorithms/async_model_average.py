"""Asynchronous model average."""

from __future__ import annotations

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Compressor, Steps
from relaxcomm.primitives import averaging_server, every, identity, parameters


def async_model_average(*, steps: Steps = 1, compressor: Compressor | None = None) -> Algorithm:
    """Average snapshots of the parameters in the background, and keep what was learned meanwhile.

    `w_n <- w_n + (1/N) sum_m s_m - s_n`, where `s_n` is what `w_n` was when it was sent. No worker ever
    waits: it trains on, takes the mean in when it has arrived, and only then sends the next snapshot.
    The slowest worker sets how often that is, and never how fast the others train. Each mean leaves
    the mean of all replicas as it is. BatchNorm's statistics stay with their worker until `close()`.
    To save a state all wait for each other: a resumed run goes on like the one that has saved there, and
    not like one that has never saved, in which slow workers would still be behind.

    Args:
        steps: the least number of local steps from one snapshot to the next, in optimizer steps.
        compressor: of the snapshots; full precision unless given. Each shard is coded on its own.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.async_model_average import async_model_average
        >>> trajectory(async_model_average(), [[1.0, 3.0]] * 4)
        tensor([[1., 3.],
                [3., 5.],
                [5., 7.],
                [7., 9.]])

    Reference: Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2022.

    Differs from the paper: snapshots are taken by steps, not by a clock of milliseconds.
    """
    rule = Rule(
        trigger=every(steps=steps),
        payload=parameters(),
        compressor=compressor or identity(),
        exchange=averaging_server(),
        delay="unbounded",
    )
    return Algorithm((rule,), name="async_model_average")
