"""What a plan needs to know of this machine: how long a task's step takes, and how fast it codes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import default_collate

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.network.operations import AllGather
from relaxcomm.network.streams import Streams
from relaxcomm.network.transport import ALONE
from relaxcomm.planner.scenario import StepTimes
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.roles import Compressor, Context, Exchange
from relaxcomm.tasks.task import Task
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.topology import complete

_STEPS, _FIRST = 20, 3  # of which the first are not counted
_ROUNDS = 5
_SEVERAL = 4  # messages
_SMALL, _LARGE = 1 << 10, 1 << 20  # entries


def measure_steps(task: Task, batch_size: int | None = None) -> StepTimes:
    """Train a task's model for some steps, alone.

    Args:
        task: whose model, optimizer and data; they are changed.
        batch_size: the task's own unless given.
    """
    data: Any = task.train_data
    size = min(batch_size or task.batch_size, len(data))
    taken = []
    task.model.train()
    for step in range(_STEPS):
        begin = time.perf_counter()
        batch = default_collate([data[(step * size + one) % len(data)] for one in range(size)])
        task.loss(task.model, batch).backward()  # type: ignore[no-untyped-call]
        for optimizer in task.optimizers:
            optimizer.step()
        for optimizer in task.optimizers:
            optimizer.zero_grad()
        taken.append(time.perf_counter() - begin)
    counted = taken[_FIRST:]
    middle = statistics.median(counted)
    # As deviations of a normal distribution: a few interruptions say nothing of the others.
    away = statistics.median(abs(one - middle) for one in counted)
    return StepTimes(middle, jitter_seconds=away / statistics.NormalDist().inv_cdf(0.75))


def measure_coding(algorithm: Algorithm, workers: int) -> Speeds:
    """Time an algorithm's slowest compressor on this machine's CPU.

    Args:
        algorithm: whose rules' compressors.
        workers: their number, whose messages a worker decodes where all gather them.
    """
    pairs = {(rule.exchange, rule.compressor) for rule in algorithm.rules if rule.compressor != identity()}
    return measure_coders(pairs, workers, torch.device("cpu")) if pairs else Speeds()


def measure_coders(
    pairs: Iterable[tuple[Exchange, Compressor]], workers: int, device: torch.device
) -> Speeds:
    """Time the slowest of some compressors, there and back, on a small and on a large tensor.

    Args:
        pairs: compressors, with the exchanges of what they code.
        workers: their number.
        device: of the tensors; where a GPU has no memory left for them, its usual speeds are taken.

    Example:
        >>> import torch
        >>> from relaxcomm.planner.measuring import measure_coders
        >>> from relaxcomm.primitives import exchange_for, quantize
        >>> coder = quantize(bits=8)
        >>> speeds = measure_coders([(exchange_for(coder), coder)], workers=4, device=torch.device("cpu"))
        >>> 0 < speeds.coding_base_seconds < 1, 0 <= speeds.coding_entry_seconds < 1e-5
        (True, True)
    """
    usual = Speeds.usual(device.type)
    coders = {(coder, _decoded(exchange, workers)) for exchange, coder in pairs}
    try:
        small, large = (
            max(_seconds(*coder, numel, device) for coder in coders) for numel in (_SMALL, _LARGE)
        )
    except torch.OutOfMemoryError:
        return usual
    return Speeds(
        usual.work_base_seconds,
        usual.work_byte_seconds,
        coding_base_seconds=small,
        coding_entry_seconds=max(0.0, large - small) / (_LARGE - _SMALL),
    )


def _decoded(exchange: Exchange, workers: int) -> int:
    """Messages of a whole bucket that a worker decodes."""
    return workers if {stage.kind for stage in exchange.stages(workers, complete())} == {AllGather} else 1


def _seconds(coder: Compressor, decoded: int, numel: int, device: torch.device) -> float:
    """There and back, with so many messages; each more than one takes a third of what three more take."""
    bucket = Bucket(0, [Item("matrix", torch.randn(32, numel // 32).to(device))])
    state = dict(coder.init(bucket))
    cx = Context(0, 0, ALONE, lambda bucket: 0.1, layout=bucket.layout, bucket_part=(0,))

    def usual(messages: int) -> float:
        rounds = range(_ROUNDS + 1)
        return statistics.median([_once(coder, messages, cx.at(step=n), bucket, state) for n in rounds][1:])

    one = usual(1)
    return one if decoded == 1 else one + (decoded - 1) * max(0.0, usual(_SEVERAL) - one) / (_SEVERAL - 1)


def _once(
    coder: Compressor, decoded: int, cx: Context, bucket: Bucket, state: dict[str, torch.Tensor]
) -> float:
    """Seconds of coding a bucket and decoding so many messages."""
    tensor = bucket.gather(bucket.empty())
    elapsed = _stopwatch(bucket.device)
    coding = coder.encode_decode(cx, tensor, state, keep_sent=False)
    try:
        message = next(coding)
        while True:
            packed = message.pack()
            message = coding.send([(1 / decoded, message.unpack(packed)) for _ in range(decoded)])
    except StopIteration:
        return elapsed()


def _stopwatch(device: torch.device) -> Callable[[], float]:
    """Seconds from now on: the host's or, by events, those of a GPU's stream, in which it also waits."""
    if device.type != "cuda":
        begin = time.perf_counter()
        return lambda: time.perf_counter() - begin
    torch.cuda.synchronize(device)
    streams = Streams(device)
    first = streams.mark()

    def elapsed() -> float:
        last = streams.mark()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    return elapsed
