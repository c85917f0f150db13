"""What an engine measures of its run, and the measures that a loop adds."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from torch import Tensor

from relaxcomm.engine.readable import Readable
from relaxcomm.monitoring.snapshot import Snapshot
from relaxcomm.monitoring.statistics import Statistics


class Telemetry(Readable):
    """The part of an `Engine` that counts, and shows what it counts."""

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
