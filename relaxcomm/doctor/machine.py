"""Versions, backends, GPUs, cores, plug-ins and environment variables."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from relaxcomm.config import registry
from relaxcomm.doctor.diagnosis import Finding, ok
from relaxcomm.errors import ConfigError
from relaxcomm.system.environment import MEETING_VARIABLES, check_rendezvous, missing_variables
from relaxcomm.system.gpus import num_gpus

_SHOWN = (*MEETING_VARIABLES, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
_SHOWN_PREFIXES = ("NCCL_", "GLOO_", "TORCH_DISTRIBUTED_", "TORCH_NCCL_", "TORCH_GLOO_")


def versions() -> dict[str, str]:
    """What has to be the same on all ranks."""
    return {
        "relaxcomm": importlib.metadata.version("relaxcomm"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def findings(local_workers: int) -> list[Finding]:
    """What this machine has.

    Args:
        local_workers: how many workers share it.
    """
    return [
        *(ok(name, version) for name, version in versions().items()),
        *_plugins(),
        _gpus(local_workers),
        *_backends(),
        *_cores(local_workers),
        *_environment(),
    ]


def _plugins() -> Iterator[Finding]:
    with warnings.catch_warnings(record=True) as left_out:
        warnings.simplefilter("always")
        num_algorithms = len(registry.algorithms())
        num_primitives = sum(map(len, registry.primitives().values()))
    yield ok("plug-ins", f"{num_algorithms} algorithms, {num_primitives} primitives")
    for one in left_out:
        yield Finding("plug-ins", "warning", str(one.message), "mend or uninstall that package")


def _gpus(local_workers: int) -> Finding:
    count = num_gpus()
    if count:
        names = ", ".join(sorted({torch.cuda.get_device_name(index) for index in range(count)}))
        text = f"{count} ({names}), CUDA {torch.version.cuda}"
        if count < local_workers:
            return Finding(
                "gpus",
                "warning",
                f"{text}, local workers: {local_workers}",
                "backend: auto trains on the CPU then; start a worker for each GPU at most",
            )
        return ok("gpus", text)
    if torch.version.cuda is not None:
        text = f"none is seen, though PyTorch is built for CUDA {torch.version.cuda}"
        return Finding("gpus", "warning", text, "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES")
    if Path("/dev/nvidia0").exists():
        text = "this machine has one, but PyTorch is built for the CPU alone"
        return Finding("gpus", "warning", text, "install PyTorch's build for CUDA, then relaxcomm beside it")
    return ok("gpus", "none; training runs on the CPU over gloo")


def _backends() -> Iterator[Finding]:
    if not dist.is_available() or not dist.is_gloo_available():
        yield Finding(
            "backends", "problem", "this PyTorch has no gloo", "install PyTorch's official build for Linux"
        )
        return
    nccl = dist.is_nccl_available()
    yield ok("backends", "gloo, nccl" if nccl else "gloo")
    if torch.cuda.is_available() and not nccl:
        text = "there is a GPU, but this PyTorch has no nccl"
        yield Finding("backends", "warning", text, "install PyTorch's official build for CUDA on Linux")


def _cores(local_workers: int) -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    text = f"{cores}, local workers: {local_workers}"
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    if local_workers > cores:
        yield Finding("cores", "warning", text, f"start at most {cores}: workers that share a core wait")
    elif threads.isdecimal() and int(threads) * local_workers > cores:
        fitting = max(1, cores // local_workers)
        yield Finding(
            "cores",
            "warning",
            f"{text}, each of OMP_NUM_THREADS={threads} threads",
            f"export OMP_NUM_THREADS={fitting}",
        )
    else:
        yield ok("cores", text)


def _environment() -> Iterator[Finding]:
    shown = sorted(name for name in os.environ if name in _SHOWN or name.startswith(_SHOWN_PREFIXES))
    text = " ".join(f"{name}={os.environ[name]}" for name in shown)
    yield ok("environment", text or "no variable of a launcher, gloo or NCCL is set")
    missing = missing_variables()
    if 0 < len(missing) < len(MEETING_VARIABLES):
        yield Finding(
            "environment",
            "problem",
            f"a launcher sets {', '.join(MEETING_VARIABLES)} together; missing: {', '.join(missing)}",
            "start with torchrun, or set all four",
        )
    elif not missing:
        try:
            check_rendezvous()
        except ConfigError as error:
            said, _, remedy = str(error).partition("; ")
            yield Finding("environment", "problem", said, remedy)
