"""How what attaching costs grows with the number of workers, with real processes over Gloo.

    python benchmarks/attach_growth.py [--most 64]

Processes are forked from one that has imported everything, so that they share memory, and train a tiny model
on this machine. For each algorithm and number of workers stands what a rank pays, the mean over all: seconds
of its processor and questions to the store for torch's default group, for attach and for a step; and what it
has then of connections, threads and memory of its own. Seconds of the clock are of so many processes on this
machine's cores and say little. Behind the others stand their growth, the slowest of a constant, log2 N, N and
N^2 that is nowhere 15 % off, else the one that is least so, and what it comes to for 1,000 workers.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from meeting import CountingStore
from report import Report, make_parser

import relaxcomm
from benchmarks.ports import free_port

SIZES = (4, 8, 16, 32, 64, 128)
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "bsp": {"algorithm": "bsp"},
    "local_sgd": {"algorithm": {"name": "local_sgd", "steps": 2}},
    "d_psgd on a ring": {"algorithm": "d_psgd", "topology": "ring"},
    "hierarchical_local_sgd, groups of 4": {
        "algorithm": {"name": "hierarchical_local_sgd", "steps": 2},
        "topology": {"hierarchical": {"sizes": 4}},
    },
    "ssp": {"algorithm": "ssp"},
}
STEPS = 4
LIMIT_SECONDS = 300.0
AT = 1000
NEAR = 0.15
GROWTHS: Mapping[str, Callable[[float], float]] = {
    "constant": lambda n: 0.0,
    "log2 N": math.log2,
    "N": float,
    "N^2": lambda n: n * n,
}


def rank_of(rank: int, size: int, port: int, config: Mapping[str, Any], told: Connection) -> None:
    """Train on one rank, and tell what it took."""
    limit = timedelta(seconds=LIMIT_SECONDS)
    store = CountingStore(dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0, timeout=limit))
    found: dict[str, float] = {}
    marks = Marks(store, found)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    dist.barrier()
    marks.take("default_group")
    model, optimizer = tiny()
    with relaxcomm.attach(model, optimizer, config):
        marks.take("attach")
        train(model, optimizer)
        marks.take("steps")
        found |= {"connections": sockets(), "threads": len(os.listdir("/proc/self/task"))}
        found |= {"python_threads": threading.active_count(), "own_bytes": own_bytes()}
    marks.take("close")
    told.send(found)
    dist.barrier()  # the store ends with rank 0
    os._exit(0)


def tiny() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 16)).square().mean().backward()
        optimizer.step()


def import_all(config: Mapping[str, Any]) -> None:
    """Attach once in this process, which imports what is imported late."""

    def one(group: relaxcomm.InProcessGroup) -> None:
        model, optimizer = tiny()
        with relaxcomm.attach(model, optimizer, config, process_group=group):
            train(model, optimizer)

    relaxcomm.simulate(one, 8)


class Marks:
    """Takes what was spent since the last mark.

    Args:
        store: that is asked.
        found: where to write.
    """

    def __init__(self, store: CountingStore, found: dict[str, float]) -> None:
        self._store, self._found = store, found
        self._last = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.process_time(), time.perf_counter(), float(self._store.asked)

    def take(self, name: str) -> None:
        now = self._now()
        for measure, one, other in zip(
            ("processor_seconds", "clock_seconds", "store_questions"), now, self._last, strict=True
        ):
            self._found[f"{name}_{measure}"] = one - other
        self._last = self._now()


def sockets() -> int:
    """Connections of this process, to ranks and to the store; torch listens on some."""
    links = (os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink())
    return sum(link.startswith("socket:") for link in links)


def own_bytes() -> float:
    """Memory that this process shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024.0 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def measure(config: Mapping[str, Any], size: int) -> dict[str, float]:
    """What a rank of so many pays: the mean over all.

    Raises: RuntimeError if a rank ends before it has told.
    """
    context = get_context("fork")
    port = free_port()
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    ranks = [
        context.Process(target=rank_of, args=(rank, size, port, config, pipes[rank][1]), daemon=True)
        for rank in range(size)
    ]
    sys.stdout.flush()
    for one in ranks:
        one.start()
    try:
        rows = []
        for rank, (reader, _) in enumerate(pipes):
            if not reader.poll(LIMIT_SECONDS):
                raise RuntimeError(f"rank {rank} of {size} has told nothing in {LIMIT_SECONDS:g} s")
            rows.append(reader.recv())
        for one in ranks:
            one.join(LIMIT_SECONDS)
    finally:
        for one in ranks:
            one.kill()
        for reader, writer in pipes:
            reader.close()
            writer.close()
    return {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}


def growth(sizes: Sequence[int], values: Sequence[float]) -> tuple[str, float]:
    """The slowest law that is near, and what it comes to at 1,000.

    Example:
        >>> growth([4, 8, 16, 32], [11.0, 19.0, 35.0, 67.0])
        ('N', 2003.0)
    """
    seen, found = np.array(values), {}
    weights = 1 / np.maximum(np.abs(seen), 1e-9)
    for name, law in GROWTHS.items():
        terms = np.array([[1.0, law(size)] for size in sizes])
        fitted, *_ = np.linalg.lstsq(terms * weights[:, None], seen * weights, rcond=None)
        miss = float(np.abs((terms @ fitted - seen) * weights).max())
        found[miss] = name, round(float(fitted @ [1.0, law(AT)]), 6)
        if miss <= NEAR:
            break
    return found[min(found)]


def show(name: str, by_size: Mapping[int, Mapping[str, float]]) -> dict[str, tuple[str, float]]:
    """A line for each measure, and its growth."""
    print(f"\n{name}: " + ", ".join(map(str, by_size)))
    laws = {}
    for row in next(iter(by_size.values())):
        values = [one[row] for one in by_size.values()]
        digits = 3 if "seconds" in row else 0
        shown = "  ".join(f"{value:12,.{digits}f}" for value in values)
        told = ""
        if "clock" not in row:
            law, there = laws[row] = growth(list(by_size), values)
            told = f"   {law:8} {there:14,.{digits}f}"
        print(f"  {row:31} {shown}{told}", flush=True)
    return laws


def main() -> None:
    parser = make_parser("attach-growth", __doc__, most=64)
    arguments = parser.parse_args()
    report = Report(arguments)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for config in CONFIGS.values():
        import_all(config)
    for name, config in CONFIGS.items():
        by_size = {size: measure(config, size) for size in SIZES if size <= arguments.most}
        found[name] = {"by_size": by_size, "at_1000": show(name, by_size)}
        report.write(found)
    report.close(found)


if __name__ == "__main__":
    main()
