"""What benchmarks measure with: ratios with intervals, memory, ranks."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # else both sides keep the default group, and may abort at their end
from torch.multiprocessing.spawn import ProcessException, spawn

from benchmarks.ports import free_port

Rounds = Sequence[Sequence[float]]
"""`rounds[r]` holds the repetitions, in seconds, that were measured in round r."""

COLLECTIVE_LIMIT = timedelta(seconds=120)
_ANSWER = "answer.json"
_END_SECONDS = 10  # for ranks to end once there is an answer; a library may hang or crash at its end


@dataclass(frozen=True)
class Ratio:
    """A ratio and the ends of its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio_of_medians(
    subject: Rounds,
    reference: Rounds,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Ratio:
    """median(subject) / median(reference), with a paired bootstrap interval over rounds.

    Whole rounds are drawn, the same ones for both sides: the steps of a round share the
    machine's state, so drawing single steps would give intervals that are far too narrow.

    Args:
        subject, reference: seconds, one list a round; round r of both ran side by side.
        confidence: probability that the interval is to cover, in (0, 1).

    Raises: ValueError when the rounds do not pair up or one is empty.

    Example:
        >>> ratio_of_medians([[2.0], [2.0]], [[1.0], [1.0]]).value
        2.0
    """
    if not subject or len(subject) != len(reference) or not all(map(len, [*subject, *reference])):
        raise ValueError(
            f"got {len(subject)} and {len(reference)} rounds; both sides need the same number, "
            "at least 1, each with at least 1 repetition"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must lie in (0, 1)")
    tops = [np.asarray(times, dtype=np.float64) for times in subject]
    bottoms = [np.asarray(times, dtype=np.float64) for times in reference]

    def ratio(chosen: Sequence[int]) -> float:
        top = np.median(np.concatenate([tops[r] for r in chosen]))
        return float(top / np.median(np.concatenate([bottoms[r] for r in chosen])))

    draws = np.random.default_rng(seed).integers(len(tops), size=(resamples, len(tops)))
    tail = (1 - confidence) / 2
    low, high = np.quantile([ratio(draw) for draw in draws], [tail, 1 - tail])
    return Ratio(ratio(range(len(tops))), float(low), float(high))


class PeakMemory:
    """Peak resident memory of this process since the object was made (Linux).

    The kernel's high-water mark is reset first, so that what imports needed in passing is not
    counted as the model's.
    """

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # heap that is free, but still resident, would hide the model's
        Path("/proc/self/clear_refs").write_text("5")
        self.baseline_bytes = self._high_water_bytes()

    def read(self) -> dict[str, int]:
        """Bytes: the whole process at its peak, and the part above the baseline."""
        peak = self._high_water_bytes()
        return {"process_bytes": peak, "above_baseline_bytes": peak - self.baseline_bytes}

    @staticmethod
    def _high_water_bytes() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("/proc/self/status has no VmHWM line; memory is measured on Linux only")


def run_ranks(
    function: Callable[..., Any],
    num_workers: int,
    *arguments: Any,
    backend: str = "gloo",
    limit_seconds: float = float("inf"),
) -> Any:
    """`function(rank, *arguments)` on fresh processes; returns what rank 0 returned.

    Each process has one torch thread and talks over the loopback interface. What `function`
    returns must be valid JSON. A rank that fails ends all of them with its traceback, the
    first one of several. A rank that has measured and does not end, or crashes as it does, is
    noted under "not_ended" if rank 0 returned a mapping, else in a warning.

    Args:
        backend: of the default group, as torch.distributed names it.
        limit_seconds: in which all must have ended.

    Raises: TimeoutError if one has not before there is an answer; all are ended then.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / _ANSWER
        passed = (num_workers, free_port(), folder, backend, function, arguments)
        started = spawn(_rank_main, passed, nprocs=num_workers, join=False)  # type: ignore[no-untyped-call]
        try:
            _join(started, limit_seconds, answer)
        except (ProcessException, TimeoutError) as error:
            first = min(Path(folder).glob("failed at *"), default=None)  # whose process may end later
            if first:
                raise RuntimeError(first.read_text()) from error
            if not answer.exists():
                raise
            return _noted(json.loads(answer.read_text()), f"{type(error).__name__}: {error}")
        return json.loads(answer.read_text())


def _join(started: Any, limit_seconds: float, answer: Path) -> None:
    """Wait for all ranks, and not long once there is an answer; the first one that fails raises here."""
    deadline = time.monotonic() + limit_seconds
    while not started.join(timeout=1.0):
        if answer.exists():
            deadline = min(deadline, time.monotonic() + _END_SECONDS)
        if time.monotonic() > deadline:
            left = [rank for rank, process in enumerate(started.processes) if process.is_alive()]
            for process in started.processes:
                process.kill()
            when = f"{_END_SECONDS} s of the answer" if answer.exists() else f"{limit_seconds:g} s"
            raise TimeoutError(f"ranks {left} did not end in {when}")


def _noted(answer: Any, note: str) -> Any:
    """The answer, and what happened to a rank behind it."""
    if isinstance(answer, dict):
        return {**answer, "not_ended": note}
    warnings.warn(f"all is measured, but not all ranks have ended: {note}", stacklevel=3)
    return answer


def _rank_main(
    rank: int,
    num_workers: int,
    port: int,
    folder: str,
    backend: str,
    function: Callable[..., Any],
    arguments: Any,
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        backend, f"tcp://127.0.0.1:{port}", timeout=COLLECTIVE_LIMIT, rank=rank, world_size=num_workers
    )
    try:
        result = function(rank, *arguments)
    except BaseException:
        told = f"rank {rank}:\n{traceback.format_exc()}"
        (Path(folder) / f"failed at {time.monotonic_ns():020} rank {rank}").write_text(told)
        raise
    if rank == 0:
        part = Path(folder) / "part"
        part.write_text(json.dumps(result))
        part.rename(Path(folder) / _ANSWER)  # it is there as a whole, or not at all
    dist.barrier()
    dist.destroy_process_group()
