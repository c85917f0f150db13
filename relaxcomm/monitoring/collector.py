"""A snapshot as Prometheus metrics, made only when somebody asks for them."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from relaxcomm.errors import UsageError
from relaxcomm.monitoring.snapshot import Snapshot

_VALUES = {
    "loss": "Training loss of this rank's latest step, as the training program gave it.",
    "batch_size": "Samples of this rank's latest batch.",
    "residual_norm": "Norm of what compression has left for later, sampled.",
    "replica_distance": "Norm of the difference between this rank's parameters, or what it contributed, and "
    "the combined ones, sampled.",
    "parameter_norm": "Norm of this rank's parameters, sampled together with the distance.",
    "staleness_steps": "Steps by which what was applied last was late.",
    "contributors": "Workers with a part in the move of the model that was taken in last.",
}
_OWN = frozenset(
    {
        *("info", "steps", "synchronisations", "last_synchronisation_timestamp_seconds", "samples"),
        *("bytes_sent", "bytes_received", "bytes_uncompressed", "step_seconds", "exchange_seconds"),
        *("evaluation", "evaluation_bytes_sent", "evaluation_bytes_received"),
        *("exposed_communication_seconds", "hidden_communication_seconds", "callback_seconds"),
        *("trigger_value", "trigger_threshold", "world_size"),
    }
)
_LOGGED = frozenset({"time", "step", "triggers"})  # what else a line of the run log says
_SUFFIXES = ("_bucket", "_count", "_created", "_info", "_sum", "_total")  # of the series of a metric
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_name(name: str) -> None:
    """Refuse a name that `relaxcomm_NAME` cannot be the metric of, or that a line of the run log has itself.

    Raises: UsageError.
    """
    taken = name in _LOGGED or any(name.removesuffix(suffix) in _OWN for suffix in _SUFFIXES)
    if taken or not _NAME.fullmatch(name):
        raise UsageError(
            f"a value cannot be called {name!r}: write lower-case letters, digits and underscores, and none "
            f"of the names that the engine uses itself: {', '.join(sorted(_LOGGED | _OWN))}; nor one of "
            f"these with {', '.join(_SUFFIXES)}"
        )


class RunCollector(Collector):
    """Reads a snapshot whenever it is asked.

    Args:
        read: makes one; it is called from the exporter's threads.
    """

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read
        self._local_steps = 0

    def begin_anew(self) -> None:
        """Another state was loaded, which may have fewer local steps."""
        self._local_steps = 0

    def collect(self) -> Iterator[Metric]:
        now = self._read()
        # An event between two steps is a synchronisation more: a counter must not fall for that.
        self._local_steps = max(self._local_steps, now.steps - now.synchronisations)
        yield from _counts(now, self._local_steps)
        yield from _traffic(now)
        yield from _times(now)
        for name, values in (("value", 0), ("threshold", 1)):
            yield _family(
                GaugeMetricFamily,
                f"trigger_{name}",
                f"The {name} that the trigger of a rule compared at the last vote.",
                "rule",
                {rule: float(pair[values]) for rule, pair in now.triggers.items()},
            )
        yield _family(
            GaugeMetricFamily,
            "evaluation",
            "Held-out measures of the latest evaluation, as the training program gave them.",
            "metric",
            {metric: float(value) for metric, value in now.evaluations.items()},
        )
        for name, value in now.values.items():
            text = _VALUES.get(name, "As a primitive, a plug-in or the training program gave it.")
            yield GaugeMetricFamily(f"relaxcomm_{name}", text, value=float(value))


@functools.cache
def _version() -> str:
    return importlib.metadata.version("relaxcomm")


def _counts(now: Snapshot, local_steps: int) -> Iterator[Metric]:
    facts = {"algorithm": now.algorithm, "version": _version(), "world_size": str(now.world_size)}
    facts["synchronous"] = str(now.keeps_step).lower()
    yield InfoMetricFamily("relaxcomm", "What runs.", value=facts)
    yield GaugeMetricFamily("relaxcomm_world_size", "Ranks that train now.", value=now.world_size)
    yield _family(
        CounterMetricFamily,
        "steps",
        "Optimizer steps, by whether anything was exchanged.",
        "outcome",
        {"synchronised": now.synchronisations, "local": local_steps},
    )
    yield CounterMetricFamily("relaxcomm_samples", "Samples trained on.", value=now.samples)
    if now.last_synchronisation is not None:
        yield GaugeMetricFamily(
            "relaxcomm_last_synchronisation_timestamp_seconds",
            "When something was exchanged last.",
            value=now.last_synchronisation,
        )


def _traffic(now: Snapshot) -> Iterator[Metric]:
    for index, what in enumerate(("sent", "received")):
        text = f"Bytes {what} for training, by exchange primitive or purpose."
        values = {primitive: moved[index] for primitive, moved in now.bytes_moved.items()}
        yield _family(CounterMetricFamily, f"bytes_{what}", text, "primitive", values)
        text = f"Bytes {what} for evaluations, which average replicas to look at them."
        yield CounterMetricFamily(
            f"relaxcomm_evaluation_bytes_{what}", text, value=now.evaluation_bytes[index]
        )
    yield CounterMetricFamily(
        "relaxcomm_bytes_uncompressed",
        "Bytes that synchronising in every step in full precision would have sent.",
        value=now.bytes_uncompressed,
    )


def _times(now: Snapshot) -> Iterator[Metric]:
    total, buckets = 0, []
    for bound, count in zip((*now.step_bounds, float("inf")), now.step_counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    yield HistogramMetricFamily(
        "relaxcomm_step_seconds", "Time of a step.", buckets=buckets, sum_value=now.step_seconds
    )
    for name, text, value in (
        ("exposed_communication", "Time spent waiting for the network.", now.exposed_seconds),
        (
            "hidden_communication",
            "Time of steps with exchanges on their way unwaited for.",
            now.hidden_seconds,
        ),
        ("callback", "Time in the engine's own callbacks, waiting excluded.", now.callback_seconds),
    ):
        yield CounterMetricFamily(f"relaxcomm_{name}_seconds", text, value=value)
    exchanges = SummaryMetricFamily(
        "relaxcomm_exchange_seconds", "From an exchange's issue to its result.", labels=["primitive"]
    )
    for primitive, (count, seconds) in now.exchanges.items():
        exchanges.add_metric([primitive], count, seconds)
    yield exchanges


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    family = kind(f"relaxcomm_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


class Labelled(Collector):
    """Everything in a registry, each series with more labels.

    Args:
        registry: whose metrics.
        labels: to add.
    """

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry, self._labels = registry, dict(labels)

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [
                sample._replace(labels={**sample.labels, **self._labels}) for sample in metric.samples
            ]
            yield metric
