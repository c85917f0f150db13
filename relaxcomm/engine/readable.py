"""What an engine tells of its run, and is told of it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from torch import Tensor

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config
from relaxcomm.engine.session import Session
from relaxcomm.errors import UsageError
from relaxcomm.monitoring.snapshot import Snapshot
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.network.generations import Generation
from relaxcomm.step.world import World


class Readable:
    """The part of an `Engine` that can be read at any time, and the measures that a loop adds.

    Args:
        session: that runs.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._closed = False

    @property
    def algorithm(self) -> Algorithm:
        """What runs.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.algorithm.rules[0].exchange
            all_reduce()
        """
        return self._session.bound.algorithm

    @property
    def replicas_may_differ(self) -> bool:
        """Whether `averaged` is of use: the algorithm lets replicas differ, or there are buffers to average.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> for layer in torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2):
            ...     with attach(layer, None, "bsp") as engine:
            ...         engine.replicas_may_differ
            False
            True
        """
        return self._session.bound.replicas_may_differ

    @property
    def step(self) -> int:
        """Steps of the run so far, the same on all ranks; of one that has joined, too.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with attach(model, optimizer, "bsp") as engine:
            ...     while engine.step < 3:  # however often ranks are lost or join
            ...         model(torch.ones(1, 2)).sum().backward()
            ...         optimizer.step()
            ...     engine.step
            3
        """
        return self._session.world.statistics.steps

    @property
    def closed(self) -> bool:
        """Whether it follows the training loop no more: after `close`, or an error in its `with` block.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.closed
            False
            >>> engine.closed
            True
        """
        return self._closed

    @property
    def choice(self) -> str | None:
        """What an algorithm such as `auto` chose after the first steps, and why, in one line; else None.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.choice is None  # nothing was left to choose
            True
        """
        return self._session.schedule.choice

    @property
    def generation(self) -> Generation:
        """The workers that train now; it changes in an elastic run that loses workers, or gets more.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.generation.number, engine.generation.workers
            (0, (0,))
        """
        return self._session.generation

    @property
    def world(self) -> World:
        """The ranks of the run, for what is built on the engine.

        Example:
            >>> import torch
            >>> from relaxcomm import attach, simulate
            >>> def size(group):
            ...     with attach(torch.nn.Linear(2, 1), None, "bsp", process_group=group) as engine:
            ...         return engine.world.rank, engine.world.size
            >>> simulate(size, 2)
            [(0, 2), (1, 2)]
        """
        return self._session.world

    @property
    def settings(self) -> Config:
        """The configuration that it was attached with.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.settings.timeout_seconds
            300.0
        """
        return self._session.settings

    @property
    def statistics(self) -> Statistics:
        """Counts of this rank, see `Statistics`; readable after `close`.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with attach(model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 2}}) as engine:
            ...     for _ in range(5):
            ...         model(torch.ones(1, 2)).sum().backward()
            ...         optimizer.step()
            >>> engine.statistics["steps"], engine.statistics["synchronisations"], engine.statistics["lssr"]
            (5, 2, 0.6)
        """
        return self._session.world.statistics

    @property
    def metrics(self) -> CollectorRegistry:
        """What the exporter shows; metrics registered here get the labels `rank` and `run`.

        Example:
            >>> import prometheus_client
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     retries = prometheus_client.Counter("retries", "Lost messages.", registry=engine.metrics)
            ...     retries.inc(3)
            ...     engine.metrics.get_sample_value("retries_total")
            3.0
        """
        return self._session.metering.registry

    @property
    def metrics_url(self) -> str | None:
        """Where this rank's metrics can be read, or None; rank 0's tells of all, see `relaxcomm top`.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> config = {"algorithm": "bsp", "metrics": {"port": 0}}
            >>> with attach(torch.nn.Linear(2, 1), None, config) as engine:
            ...     engine.metrics_url.startswith("http://")
            True
        """
        return self._session.metering.url

    def snapshot(self) -> Snapshot:
        """All that exporter and run log show, as it is now; also without either, and after `close`.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.snapshot().algorithm
            'bsp'
        """
        return self._session.metering.snapshot()

    def observe_evaluation(self, **measures: float | Tensor) -> None:
        """Show the latest evaluation as `relaxcomm_evaluation{metric="NAME"}`, and in the run log.

        Args:
            measures: of held-out data, such as the accuracy of the model inside `averaged`; numbers, as
                `observe` takes them.

        Raises: UsageError for a value that is no number.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> model = torch.nn.Linear(2, 1)
            >>> with attach(model, None, "bsp") as engine:
            ...     with engine.averaged():
            ...         engine.observe_evaluation(accuracy=0.9)
            ...     engine.snapshot().evaluations
            {'accuracy': 0.9}
        """
        self._session.metering.observe_evaluation(measures)

    def observe(self, **values: float | Tensor) -> None:
        """Show the latest value of something as the metric `relaxcomm_NAME` and in the run log.

        Args:
            values: numbers, also NumPy's, or tensors of one element, which may lie on a GPU: nobody waits for
                them here, and they are copied, so that they may change afterwards.

        Raises: UsageError for a name that no metric can have, or that the engine uses itself, or a value that
            is no number.

        Example:
            >>> import torch
            >>> from relaxcomm import attach
            >>> with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
            ...     engine.observe(loss=torch.tensor(0.5))
            ...     engine.statistics.latest
            {'loss': tensor(0.5000)}
        """
        self._session.metering.observe(values)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the engine is closed; attach again")
