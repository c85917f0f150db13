"""The device that a rank trains on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from relaxcomm.config import Config
from relaxcomm.errors import ConfigError
from relaxcomm.system.environment import launched
from relaxcomm.system.gpus import num_gpus
from relaxcomm.system.slurm import gpus_on_node


def choose_device(config: Config, local_workers: int) -> torch.device:
    """The device of this rank: with `backend: auto`, a GPU if there is one for every local worker.

    Where srun has given each task a GPU of its own, this process sees that one alone.

    Raises: ConfigError if `backend: nccl` asks for more GPUs than there are.
    """
    gpus = num_gpus()
    if gpus == 1 < local_workers <= gpus_on_node() and config.backend != "gloo":
        return torch.device("cuda", 0)
    if config.backend == "nccl" and gpus < local_workers:
        raise ConfigError(
            f"backend: nccl needs a GPU for each of the {local_workers} local workers, PyTorch sees {gpus}; "
            "use fewer workers or backend: gloo, which trains on the CPU"
        )
    if config.backend == "gloo" or gpus < local_workers:
        return torch.device("cpu")
    return torch.device("cuda", launched().local_rank)


def device_name(device: torch.device) -> str:
    """A GPU's model, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def why_on_cpu(device: torch.device, config: Config, local_workers: int) -> str | None:
    """Why workers that may use GPUs leave those of this machine alone; None where they do not."""
    gpus = num_gpus()
    if device.type != "cpu" or config.backend != "auto" or not gpus:
        return None
    return (
        f"training on the CPU: there are {local_workers} local workers for {gpus} GPU{'s' * (gpus > 1)}, and "
        f"each needs its own; start {gpus} here, or set backend: gloo, which means the CPU"
    )


def move(batch: Any, device: torch.device) -> Any:
    """The tensors of a batch of tuples, lists and mappings on `device`; whatever else as it is."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move(item, device) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move(item, device) for item in batch)
    return batch
