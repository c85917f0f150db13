"""The algorithm that suits the network, by measuring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relaxcomm import (
    Algorithm,
    Chooser,
    Measured,
    Rule,
    Steps,
    chain,
    chunk_top_k,
    deltas,
    error_feedback,
    every,
    exchange_for,
    frozen,
    quantize,
)

_HIDDEN = 0.5  # of a step's computing, in which gradients are on their way already
_CODING_SECONDS = 3e-8  # of an entry, there and back
_PERIODS = (2, 4, 8, 16, 32, 64, 128)
_EIGHT_BITS = quantize(bits=8)
_FEW = error_feedback(compressor=chain(compressors=(chunk_top_k(num_kept=128), quantize(bits=4))))


@dataclass(frozen=True)
class _Plan:
    """One composition.

    Args:
        algorithm: as YAML has it.
        step_seconds: predicted time of a step.
        price: steps to quality, as a multiple of those of bsp.
    """

    algorithm: dict[str, object]
    step_seconds: float
    price: float

    @property
    def seconds(self) -> float:
        return self.step_seconds * self.price


@frozen
class least_time(Chooser):
    """The composition whose predicted time to quality is least.

    That is the time of a step, of computing and what is not hidden of communication, times the number of
    steps: `1 + 0.015 H + 0.03 d (d + 1)` of those of bsp for an average every H steps, d late, and 0.15 more
    where only one entry in 32 is sent.

    Args:
        steps: that are measured.
    """

    steps: Steps = 8

    @property
    def after_steps(self) -> int:
        return self.steps

    def choose(self, measured: Measured) -> tuple[object, str]:
        plans = [_bsp(measured), *_local(measured)]
        best = min(plans, key=lambda plan: plan.seconds)
        unit = max(measured.step_seconds, 1e-9)
        if measured.world_size == 1:
            return plans[0].algorithm, "there is one worker"
        return best.algorithm, (
            f"a step computes {1e3 * measured.step_seconds:.3g} ms, {measured.parameter_bytes / 1e6:.3g} MB "
            f"go at {8e-6 * measured.bytes_per_second:,.0f} Mbit/s; a step should take "
            f"{best.step_seconds / unit:.2f} times as long as alone, with bsp "
            f"{plans[0].step_seconds / unit:.2f} times"
        )


def _bsp(measured: Measured) -> _Plan:
    sent = _sent_bytes(measured, measured.parameter_bytes)
    late = sent / measured.bytes_per_second + measured.latency_seconds - _HIDDEN * measured.step_seconds
    return _Plan({"name": "bsp"}, measured.step_seconds + max(late, measured.latency_seconds), 1.0)


def _local(measured: Measured) -> Iterator[_Plan]:
    """Averages in full precision, of all entries in 8 bits, and of one in 32 in 4 bits, which costs steps."""
    numel, full = measured.num_parameters, measured.parameter_bytes
    few = (measured.world_size - 1) * _FEW.message_bytes(numel, full // numel)
    for compressor, sent, coded, price in (
        (None, _sent_bytes(measured, full), 0, 0.0),
        (_EIGHT_BITS, _sent_bytes(measured, numel), numel, 0.0),
        (_FEW, few, numel, 0.15),
    ):
        exchange = sent / measured.bytes_per_second + 2 * measured.latency_seconds
        for period in _PERIODS:
            for delay in sorted({0, 1, period // 4, period // 2}):
                waiting = max(exchange - delay * measured.step_seconds, 0.0) + _CODING_SECONDS * coded
                yield _Plan(
                    {"name": "local_sgd", "steps": period, "compressor": compressor, "delay": delay},
                    measured.step_seconds + waiting / period,
                    1 + price + 0.015 * period + 0.03 * delay * (delay + 1),
                )


def _sent_bytes(measured: Measured, message_bytes: int) -> float:
    """What a rank sends for a mean over all, as a ring or by scatter-gather."""
    return 2 * (measured.world_size - 1) / measured.world_size * message_bytes


def auto() -> Algorithm:
    """Measure the first steps, then go on with what promises the least time to quality.

    Eight steps are trained alone and then averaged, 8 bits an entry; meanwhile the engine times a step, and
    after them an all-reduce. `bsp` is chosen where gradients hide behind the backward pass, else
    `local_sgd`, as often as the network lets it: in full precision, on slower links in 8 bits, on the slowest
    with few entries of 4 bits. Rank 0 says in one line what was chosen and why, and `engine.choice` does.

    Returns: the algorithm.

    Example:
        >>> auto().chooser
        least_time(steps=8)

    Reference: the time of an exchange is that of the alpha-beta model, Hockney, "The communication challenge
        for MPP", Parallel Computing 1994; the price in steps is measured, see benchmarks/results.
    """
    chooser = least_time()
    rule = Rule(
        trigger=every(steps=chooser.steps),
        payload=deltas(),
        compressor=_EIGHT_BITS,
        exchange=exchange_for(_EIGHT_BITS),
    )
    return Algorithm((rule,), name="auto", chooser=chooser)
