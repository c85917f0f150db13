"""The algorithm that suits the network, by measuring."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import (
    Compressor,
    Measured,
    Planner,
    PlannerFacts,
    Speeds,
    Steps,
    exchange_cost,
    frozen,
    one_tensor,
)
from relaxcomm.primitives import (
    chain,
    chunk_top_k,
    complete,
    deltas,
    error_feedback,
    every,
    exchange_for,
    identity,
    quantize,
)
from relaxcomm_algorithms.bsp import bsp
from relaxcomm_algorithms.local_sgd import local_sgd

_HIDDEN = 0.5  # of a step's computing, in which the gradients of many buckets are on their way already
_SHOWN = 0.3  # of an exchange, even where it hides: workers wait for each other
_PRICES = 0.03, 0.09  # of a local step, in steps to quality: of all entries, and of few
_ADAPTIVE_PRICES = 0.05, 0.16
_LATE = 0.05  # of a step by which an average is late
_PERIODS = (2, 4, 8, 16, 32, 64, 128)
_FULL = identity()
_EIGHT_BITS = quantize(bits=8)
_FEW = error_feedback(
    compressor=chain(compressors=(chunk_top_k(num_kept=1, chunk_size=16), quantize(bits=4)))
)
_CODERS = (_EIGHT_BITS, _FEW)


@dataclass(frozen=True)
class _Plan:
    """One composition.

    Args:
        make: makes the algorithm.
        step_seconds: predicted time of a step.
        price: steps to quality, as a multiple of those of bsp.
    """

    make: Callable[[], Algorithm]
    step_seconds: float
    price: float

    @property
    def seconds(self) -> float:
        return self.step_seconds * self.price


@frozen
class least_time(Planner):
    """The composition whose predicted time to quality is least.

    That is the time of a step, of computing and what is not hidden of communication and of the processor's
    work for it, times the number of steps: `1 + (1 - 1/N) (c H + 0.05 d)` of those of bsp for an average of N
    workers every H steps, d late. c is 0.03, with only one entry in 16 sent 0.09, and with an adaptive
    optimizer, such as Adam, 0.05 and 0.16.

    Args:
        steps: that are measured.
    """

    steps: Steps = 7

    @property
    def facts(self) -> PlannerFacts:
        return PlannerFacts(after_steps=self.steps)

    @property
    def coders(self) -> tuple[Compressor, ...]:
        return _CODERS

    def choose(self, measured: Measured) -> tuple[Algorithm, str]:
        if measured.world_size == 1:
            return bsp(), "there is one worker"
        plans = [_synchronous(measured), *_local(measured)]
        best = min(plans, key=lambda plan: plan.seconds)
        unit = max(measured.step_seconds, 1e-9)
        return best.make(), (
            f"{measured.words}; a step should take {best.step_seconds / unit:.2f} times as long as alone, "
            f"with bsp {plans[0].step_seconds / unit:.2f} times"
        )


def _synchronous(measured: Measured) -> _Plan:
    exchange = _Exchange(measured, _FULL)
    hiding = _HIDDEN * measured.step_seconds * (1 - 1 / measured.num_buckets)
    shown = max(exchange.shown(1, hiding), measured.latency_seconds)
    return _Plan(bsp, measured.step_seconds + shown, 1.0)


def _local(measured: Measured) -> Iterator[_Plan]:
    """Averages in full precision, of all entries in 8 bits, and of one in 16 in 4 bits, which costs steps."""
    all_entries, few = _ADAPTIVE_PRICES if measured.adaptive_optimizer else _PRICES
    noise = 1 - 1 / measured.world_size  # the share of a gradient's noise that an average takes away
    for compressor, price in ((None, all_entries), (_EIGHT_BITS, all_entries), (_FEW, few)):
        exchange = _Exchange(measured, compressor or _FULL)
        for period in _PERIODS:
            for delay in sorted({0, 1, period // 4}):
                shown = exchange.shown(period, delay * measured.step_seconds)
                yield _Plan(
                    partial(local_sgd, period, compressor=compressor, delay=delay),
                    measured.step_seconds + shown / period,
                    1 + noise * (price * period + _LATE * delay),
                )


class _Exchange:
    """What an exchange of all parameters costs, by the planner's prices.

    Args:
        measured: of the run.
        coder: of what is sent.
    """

    def __init__(self, measured: Measured, coder: Compressor) -> None:
        cost = exchange_cost(
            exchange_for(coder),
            coder,
            one_tensor(measured.num_parameters),
            measured.parameter_bytes // measured.num_parameters,
            measured.world_size,
            complete(),
            speeds=_speeds(measured, coder),
            crowding=measured.crowding,
        )
        self._seconds = cost.link_seconds(measured.latency_seconds, measured.bytes_per_second)
        self._work, self._coding = cost.work_seconds, cost.coding_seconds
        self._jitter = measured.jitter_seconds

    def shown(self, period: int, hiding: float) -> float:
        """Seconds by which it makes training longer.

        It lasts as long as the last worker, the link and its latency let it. The processor's work for it
        hides behind nothing.

        Args:
            period: steps since the last one, over which workers have come apart.
            hiding: seconds of training that go on meanwhile.
        """
        exchange = self._seconds + self._jitter * math.sqrt(period)
        return max(exchange - hiding, _SHOWN * exchange, self._work) + self._coding


def _speeds(measured: Measured, coder: Compressor) -> Speeds:
    """Of coding on the workers' devices, where it was measured; each bucket takes a base of its own."""
    usual, count = Speeds(), measured.num_buckets
    base, entry = usual.coding_base_seconds, usual.coding_entry_seconds
    if coder in _CODERS and measured.coding:
        base, entry = measured.coding[_CODERS.index(coder)]
    return Speeds(count * usual.work_base_seconds, usual.work_byte_seconds, count * base, entry)


def auto() -> Algorithm:
    """Measure the first steps, then go on with what promises the least time to quality.

    Seven steps are trained alone; meanwhile the engine times a step, and after them an all-reduce. `bsp` is
    chosen where gradients hide behind the backward pass, else `local_sgd`, as often as the network lets it:
    in full precision, on slower links in 8 bits, on the slowest with few entries of 4 bits. Rank 0 says in
    one line what was chosen and why, and `engine.choice` does.

    The measured steps are local, and exchanges that were due in them are not made up one by one: `bsp` begins
    with one average of parameters and moments, and `local_sgd` keeps its clock, so with a period of 8 steps
    or more it is bit for bit the run that began with it; with 2 or 4 the first average is that after step 8.

    Returns: the algorithm.

    Example:
        >>> import torch
        >>> from relaxcomm import Link, attach, simulate
        >>> from relaxcomm_algorithms.auto import auto
        >>> def train(group):
        ...     model = torch.nn.Linear(64, 64)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     with attach(model, optimizer, auto(), process_group=group) as engine:
        ...         for _ in range(10):
        ...             group.sleep(0.1)
        ...             model(torch.ones(1, 64)).sum().backward()
        ...             optimizer.step()
        ...         return engine.choice.split(":")[0]
        >>> [simulate(train, 2, link=Link(latency_seconds=latency))[0] for latency in (0.0, 0.1)]
        ['auto chose Algorithm(bsp', 'auto chose Algorithm(local_sgd']

    Reference: the time of an exchange is that of the alpha-beta model, Hockney, "The communication challenge
        for MPP", Parallel Computing 1994; the price in steps is measured, see benchmarks/results.
    """
    planner = least_time()
    rule = Rule(
        trigger=every(steps=planner.steps + 1),  # what is chosen before that takes its anchor over
        payload=deltas(),
        compressor=_EIGHT_BITS,
        exchange=exchange_for(_EIGHT_BITS),
    )
    return Algorithm((rule,), name="auto", planner=planner)
