"""Rooms that every benchmark shares: ratios with intervals, memory, ranks, the machine, result files."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

Rounds = Sequence[Sequence[float]]
"""`rounds[r]` holds the repetitions, in seconds, that were measured in round r."""

COLLECTIVE_LIMIT = timedelta(seconds=120)


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


def run_ranks(function: Callable[..., Any], num_workers: int, *arguments: Any) -> Any:
    """`function(rank, *arguments)` on fresh gloo processes; returns what rank 0 returned.

    Each process has one torch thread and talks over the loopback interface. What `function`
    returns must be valid JSON. A rank that fails ends all of them with its traceback.
    """
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        answer = Path(folder) / "answer.json"
        passed = (num_workers, port, str(answer), function, arguments)
        spawn(_rank_main, passed, nprocs=num_workers)  # type: ignore[no-untyped-call]
        return json.loads(answer.read_text())


def _rank_main(
    rank: int, num_workers: int, port: int, answer: str, function: Callable[..., Any], arguments: Any
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", timeout=COLLECTIVE_LIMIT, rank=rank, world_size=num_workers
    )
    result = function(rank, *arguments)
    if rank == 0:
        Path(answer).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def environment() -> dict[str, Any]:
    """What a reader needs to know of the machine, the versions and the moment."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: metadata.version(name) for name in ("numpy", "relaxcomm")},
        },
        "machine": {
            "cpu": cpu,
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "load_average_before": os.getloadavg()[0],
        },
    }


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None  # an unpacked archive has no history


def write_result(path: Path, content: dict[str, Any]) -> None:
    """Write one result file; ratios become objects, and lists of numbers stay on one line."""
    text = json.dumps(content, indent=1, default=asdict)
    one_line = re.sub(r"\[([^][{}]*)\]", lambda match: "[" + " ".join(match[1].split()) + "]", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(one_line + "\n")


def dated(name: str) -> Path:
    """The default place of a result: benchmarks/results/NAME-YYYYMMDD-HHMMSS.json, in UTC."""
    return Path(__file__).parent / "results" / f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
