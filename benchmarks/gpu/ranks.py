"""Processes that share one GPU and talk over NCCL, or use the CPU and Gloo."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.measure import run_ranks

DIFFERENT_HOSTS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
"""NCCL takes ranks on one GPU for a mistake, unless it takes them for different hosts."""
BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}


def share_gpu(rank: int) -> torch.device:
    """This process takes the one GPU, and is another host to NCCL."""
    os.environ.update(DIFFERENT_HOSTS, NCCL_HOSTID=f"host{rank}")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def run_on(
    device: str, num_ranks: int, limit_seconds: float, function: Callable[..., Any], *arguments: Any
) -> Any:
    """`function(rank, device, *arguments)` on fresh processes; returns what rank 0 returned.

    Args:
        device: "cuda" or "cpu".
        num_ranks: how many processes.
        limit_seconds: in which they must have ended.

    Raises: TimeoutError if they have not; all are ended then.
    """
    return run_ranks(
        _on_device,
        num_ranks,
        device,
        function,
        arguments,
        backend=BACKENDS[device],
        limit_seconds=limit_seconds,
    )


def _on_device(rank: int, device: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    # Some contenders look for each other there, and tell of every look.
    os.environ.update(MASTER_ADDR="127.0.0.1", RUST_LOG="error")
    return function(rank, share_gpu(rank) if device == "cuda" else torch.device(device), *arguments)
