"""On what an algorithm is planned."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from relaxcomm.composition.exchange_cost import ExchangeCost, Speeds, exchange_cost
from relaxcomm.data import RoundPlan
from relaxcomm.errors import ConfigError
from relaxcomm.network.timeline import Times
from relaxcomm.planner.links import Links
from relaxcomm.roles import Compressor, Exchange
from relaxcomm.tensors.layout import Layout
from relaxcomm.topology import Topology, complete

_LEAST = 0.1  # of the mean; no step takes less
_DRAWN = 1024  # times of a step at least, by which those that are taken are spread
_EPOCH_STEPS = 100  # of a client, where its data are not known


@dataclass(frozen=True)
class StepTimes:
    """How long workers compute for a step.

    Args:
        seconds: mean of a usual step.
        jitter_seconds: standard deviation of a worker's steps.
        straggling: the share of a worker's steps that take longer, in [0, 1].
        straggling_times: how many times as long these take.
        backward: the share of a step in which gradients become ready, in [0, 1].

    Raises: ConfigError for a number outside its range.
    """

    seconds: float
    jitter_seconds: float = 0.0
    straggling: float = 0.0
    straggling_times: float = 1.0
    backward: float = 2 / 3

    def __post_init__(self) -> None:
        share, times = self.straggling, self.straggling_times
        if not 0 < self.seconds < math.inf:
            raise ConfigError(f"--step-seconds is a number of seconds, above 0; got {self.seconds:g}")
        if not 0 <= self.jitter_seconds < math.inf:
            raise ConfigError(f"--jitter is a number of seconds, 0 or more; got {self.jitter_seconds:g}")
        if not 0 <= share <= 1 <= times < math.inf:
            raise ConfigError(
                "--stragglers is SHARE,TIMES, such as 0.01,3: a share of the steps from 0 to 1, which take 1 "
                f"times as long or more; got {share:g},{times:g}"
            )
        if not 0 <= self.backward <= 1:
            raise ConfigError(
                f"the share of a step in which gradients become ready is from 0 to 1; got {self.backward:g}"
            )

    @property
    def all_alike(self) -> bool:
        """Whether all workers' steps take the same time."""
        return not self.jitter_seconds and (not self.straggling or self.straggling_times == 1)

    def draw(self, steps: int, workers: int, seed: int) -> Times:
        """Seconds of each step of each worker, `[steps, workers]`.

        Where they are few, of several times as many those that have the slowest worker's time spread as all
        have it: so they are about as long, on average, as many would be.
        """
        if self.all_alike:
            return np.full((steps, workers), self.seconds)
        random, each = np.random.default_rng(seed), -(-_DRAWN // steps)
        shape = each * steps, workers
        drawn = random.normal(self.seconds, self.jitter_seconds, shape)
        slow = random.random(shape) < self.straggling
        usual: Times = np.maximum(drawn, _LEAST * self.seconds)
        found = np.where(slow, usual * self.straggling_times, usual)
        spread = np.argsort(found.max(1))[each // 2 :: each]
        times: Times = found[random.permutation(spread)]
        return times


@dataclass(frozen=True)
class Scenario:
    """On what an algorithm is planned.

    Args:
        workers: their number.
        step_times: without communication.
        links: between the workers.
        topology: the configured graph, for algorithms that use one.
        bucket_bytes: capacity of a bucket.
        speeds: of a worker's processor.
        crowding: seconds that a second of a worker's processor time takes: 1 where it has a core of its own,
            0 where its time costs nothing.
        samples: of the training data, which clients divide; None where they are not known.
        batch_size: samples a worker and step.
        seed: of the step times.
    """

    workers: int
    step_times: StepTimes
    links: Links
    topology: Topology = field(default_factory=complete)
    bucket_bytes: int = 26_214_400
    speeds: Speeds = field(default_factory=Speeds)
    crowding: float = 0.0
    samples: int | None = None
    batch_size: int = 1
    seed: int = 0

    def cost(
        self,
        exchange: Exchange,
        compressor: Compressor,
        layout: Layout,
        element_bytes: int,
        *,
        exact: bool = False,
    ) -> ExchangeCost:
        """What one exchange of a bucket costs a worker here, see `exchange_cost`."""
        of = exchange, compressor, layout, element_bytes, self.workers, self.topology
        return exchange_cost(*of, speeds=self.speeds, crowding=self.crowding, exact=exact)

    def round_steps(self, plan: RoundPlan) -> int:
        """Steps of a worker between two exchanges of clients, on average."""
        epoch_steps = _EPOCH_STEPS
        if self.samples is not None:
            part = math.ceil(self.samples / plan.num_clients(self.workers))
            epoch_steps = math.ceil(part / self.batch_size)
        return max(1, round(plan.mean_steps(self.workers, epoch_steps)))
