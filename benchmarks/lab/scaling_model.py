"""Exchanges measured by `benchmarks.lab.scaling` beside what the alpha-beta model says of them.

    T = operations * alpha + 8 * bytes / beta

alpha is the time of an all-reduce of one entry among as many workers at the same rate; beta the link's rate,
or, where links are unshaped, what the reference does between one entry and its largest size.

Reference: Hockney, "The communication challenge for MPP", Parallel Computing 1994.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

REFERENCE = "all_reduce"  # PyTorch's own, of one flat tensor
MARGIN = 0.15  # by which an exponent may exceed the predicted one
BITS_PER_SECOND = {"1gbit": 1e9}

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Cost:
    """One contender's exchange in one place, medians over the rounds.

    Args:
        label: of the contender.
        rate: of the links.
        workers: number of hosts.
        numel: parameters.
        seconds: of the slowest host, every round.
        predicted: seconds.
        bytes_sent: by a host, as the kernel counts.
        declared_bytes: by a host, as the framework's facts have it.
        cpu_seconds: processor time of a host.
    """

    label: str
    rate: str
    workers: int
    numel: int
    seconds: tuple[float, ...]
    predicted: float
    bytes_sent: float
    declared_bytes: float
    cpu_seconds: float

    @property
    def measured(self) -> float:
        """Seconds."""
        return median(self.seconds)


@dataclass(frozen=True)
class Growth:
    """Exponents of a cost along sizes (`workers` is given) or along workers (`numel` is given)."""

    label: str
    rate: str
    workers: int | None
    numel: int | None
    measured: float
    predicted: float
    cpu: float
    bytes_sent: float

    @property
    def too_fast(self) -> bool:
        """Whether time grows faster than predicted by more than the margin."""
        return self.measured > self.predicted + MARGIN

    @property
    def works_too_much(self) -> bool:
        """Whether a host's processor time grows by more than the margin faster than its bytes and its part.

        Its part is linear in the parameters, and the same for any number of workers.
        """
        part = 1.0 if self.numel is None else 0.0
        return self.cpu > max(part, self.bytes_sent) + MARGIN


def predicted_seconds(operations: int, num_bytes: float, alpha_seconds: float, beta: float) -> float:
    """The alpha-beta model; `beta` in bits a second."""
    return operations * alpha_seconds + 8 * num_bytes / beta


def costs(records: Iterable[Record]) -> list[Cost]:
    """What was measured, with the prediction."""
    groups: dict[tuple[str, int, str, int], list[Record]] = defaultdict(list)
    for record in records:
        if record["kind"] == "exchange":
            groups[record["rate"], record["workers"], record["label"], record["numel"]].append(record)
    seconds = {key: median(one["seconds"] for one in group) for key, group in groups.items()}
    found = []
    for (rate, workers, label, numel), group in groups.items():
        if numel == 1:
            continue
        tiny = rate, workers, REFERENCE, 1
        largest = max(key for key in groups if key[:3] == (rate, workers, REFERENCE))
        added_bytes = groups[largest][0]["declared_bytes"] - groups[tiny][0]["declared_bytes"]
        beta = BITS_PER_SECOND.get(rate) or 8 * added_bytes / (seconds[largest] - seconds[tiny])
        one = group[0]
        found.append(
            Cost(
                label=label,
                rate=rate,
                workers=workers,
                numel=numel,
                seconds=tuple(record["seconds"] for record in group),
                predicted=predicted_seconds(one["operations"], one["declared_bytes"], seconds[tiny], beta),
                bytes_sent=median(record["bytes_sent"] for record in group),
                declared_bytes=one["declared_bytes"],
                cpu_seconds=median(record["cpu_seconds"] for record in group),
            )
        )
    return found


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The exponent p of `y = c x^p`, by least squares on logarithms."""
    xs, ys = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mean_x, mean_y = fmean(xs), fmean(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mean_x) ** 2 for x in xs
    )


def growths(found: Iterable[Cost]) -> Iterator[Growth]:
    """How every contender's costs grow along sizes, then along workers, where there are two or more."""
    along_sizes: dict[tuple[str, str, int], list[Cost]] = defaultdict(list)
    along_workers: dict[tuple[str, str, int], list[Cost]] = defaultdict(list)
    for cost in found:
        along_sizes[cost.label, cost.rate, cost.workers].append(cost)
        along_workers[cost.label, cost.rate, cost.numel].append(cost)
    for (label, rate, workers), group in sorted(along_sizes.items()):
        if len(group) > 1:
            yield Growth(label, rate, workers, None, *_exponents(group, lambda cost: cost.numel))
    for (label, rate, numel), group in sorted(along_workers.items()):
        if len(group) > 1:
            yield Growth(label, rate, None, numel, *_exponents(group, lambda cost: cost.workers))


def _exponents(group: Sequence[Cost], along: Callable[[Cost], int]) -> Iterator[float]:
    xs = [along(cost) for cost in group]
    for cost_of in _COSTS:
        yield slope(xs, [cost_of(cost) for cost in group])


_COSTS: tuple[Callable[[Cost], float], ...] = (
    lambda cost: cost.measured,
    lambda cost: cost.predicted,
    lambda cost: cost.cpu_seconds,
    lambda cost: cost.bytes_sent,
)
