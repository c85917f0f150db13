"""How fast the workers reach each other: all-reduces of 4 bytes and of some megabytes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from relaxcomm.doctor import interfaces
from relaxcomm.doctor.diagnosis import Finding, ok
from relaxcomm.system.environment import launched
from relaxcomm.system.gpus import num_gpus
from relaxcomm.system.quantities import bandwidth, duration

_MEGABYTE = 1_000_000
_LARGEST_BYTES = 16 * _MEGABYTE
_LATENCY_RUNS = 30
_BANDWIDTH_RUNS = 3
_EXAMPLE_BYTES = 100 * _MEGABYTE


def findings(store: Any, rank: int, world_size: int, timeout_seconds: float) -> list[Finding]:
    """Latency and bandwidth of gloo, and of NCCL where each local worker has a GPU.

    Args:
        store: where the ranks find each other.
        rank: of this process.
        world_size: how many take part; every rank must call this.
        timeout_seconds: the longest wait for another rank.
    """
    limit = timedelta(seconds=timeout_seconds)
    name, address = interfaces.gloo_address()
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=limit)
        found = list(_measure("gloo", None, torch.device("cpu"), limit))
        if _all_have_a_gpu():
            device = torch.device("cuda", launched().local_rank)
            torch.cuda.set_device(device)
            found += _measure("nccl", dist.new_group(backend="nccl", timeout=limit), device, limit)
        dist.destroy_process_group()
    except RuntimeError as error:
        text = f"rank {rank}, over {name} {address}: {str(error).splitlines()[0]}"
        remedy = (
            "can the hosts reach each other at the addresses above, on all ports? else GLOO_SOCKET_IFNAME"
        )
        return [Finding("links", "problem", text, remedy)]
    return found


def _all_have_a_gpu() -> bool:
    local = launched().local_world_size
    have = dist.is_nccl_available() and num_gpus() >= local
    everyone = torch.tensor([int(have)])
    dist.all_reduce(everyone, dist.ReduceOp.MIN)
    return bool(everyone.item())


def _measure(backend: str, group: Any, device: torch.device, limit: timedelta) -> Iterator[Finding]:
    latency = _seconds(4, _LATENCY_RUNS, group, device, limit)
    yield ok("latency", f"{backend}: all-reduce of 4 B in {duration(latency)}, median of {_LATENCY_RUNS}")
    # A slow link is asked for no more than it can carry in a moment; all ranks choose the same.
    once = _slowest(_seconds(_MEGABYTE, 1, group, device, limit))
    numel_bytes = _LARGEST_BYTES if once < 0.25 else _MEGABYTE
    seconds = _slowest(_seconds(numel_bytes, _BANDWIDTH_RUNS, group, device, limit))
    world_size = dist.get_world_size()
    rate = 2 * (world_size - 1) / world_size * numel_bytes / seconds
    text = f"{backend}: all-reduce of {numel_bytes // _MEGABYTE} MB in {duration(seconds)}"
    if world_size > 1:
        text += f", each worker sends {bandwidth(rate)}"
    text += f"; 100 MB of gradients would take {duration(_EXAMPLE_BYTES / numel_bytes * seconds)} a step"
    yield ok("bandwidth", text)


def _seconds(num_bytes: int, runs: int, group: Any, device: torch.device, limit: timedelta) -> float:
    """Median time of an all-reduce, after one that is not counted."""
    tensor = torch.zeros(num_bytes // 4, device=device)
    times = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        dist.all_reduce(tensor, group=group, async_op=True).wait(limit)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def _slowest(seconds: float) -> float:
    slowest = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest.item())
