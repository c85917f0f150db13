"""Whether the ranks' models are where NCCL can connect them: each on a GPU of its own, as a whole."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from relaxcomm.errors import UsageError, some_of
from relaxcomm.network import TorchTransport, Transport
from relaxcomm.replica.named_parameters import Named, named_buffers

_MOST_NAMES = 5


def current_gpu() -> int:
    """The number of this process's current GPU, the first one where CUDA was not used yet."""
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's
    return torch.cuda.current_device() if in_use else 0


def gpu_of(model: nn.Module, named: Named, transport: Transport) -> str:
    """The GPU of a model with its parameters, see `gpu_holding`."""
    return gpu_holding(dict(named), dict(named_buffers(model)), transport, current_gpu())


def gpu_holding(
    parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], transport: Transport, current: int
) -> str:
    """This rank's GPU, by host and number, where NCCL connects the ranks; nothing elsewhere.

    Args:
        parameters, buffers: of the model, by name.
        transport: to the other ranks.
        current: the number of this process's current GPU.

    Raises: UsageError for a model that is not on the one GPU that is this process's current device.
    """
    if not isinstance(transport, TorchTransport) or transport.backend != "nccl":
        return ""
    device = next(iter(parameters.values())).device
    if device.type != "cuda":
        return ""
    check_devices(_devices(parameters), _devices(buffers), current)
    # Ranks on one GPU can talk if each claims to be on a host of its own, as tests do.
    host = os.environ.get("NCCL_HOSTID") or socket.gethostname()
    return f"{host} {torch.cuda.get_device_properties(device).uuid}"


def check_devices(
    parameters: Mapping[str, torch.device], buffers: Mapping[str, torch.device], current: int
) -> None:
    """Refuse a model that NCCL cannot work with.

    Args:
        parameters, buffers: where each one is, by name.
        current: the number of this process's current GPU.

    Raises: UsageError.
    """
    first, device = next(iter(parameters.items()))
    if apart := {name: one for name, one in parameters.items() if one != device}:
        raise UsageError(
            f"the model's parameters are on several devices: {first} on {device}, {_shown(apart)}; over NCCL "
            f"a rank trains on one: call model.to({str(device)!r}) first"
        )
    if apart := {name: one for name, one in buffers.items() if one != device}:
        raise UsageError(
            f"the model's parameters are on {device}, but buffers are not: {_shown(apart)}; NCCL sends what "
            f"is on a GPU alone: call model.to({str(device)!r}) first"
        )
    if current != device.index:
        raise UsageError(
            f"the model is on {device}, but this process's current device is cuda:{current}; call "
            f"torch.cuda.set_device({device.index}) before the model is made"
        )


def check_gpus(gpus: Sequence[str]) -> None:
    """Refuse ranks that share a GPU: NCCL cannot connect them.

    Args:
        gpus: of each rank, as `gpu_of` names them.

    Raises: UsageError, the same on all ranks.
    """
    ranks: dict[str, list[int]] = {}
    for rank, gpu in enumerate(gpus):
        if gpu:
            ranks.setdefault(gpu, []).append(rank)
    shared = [f"ranks {who} on {gpu}" for gpu, who in ranks.items() if len(who) > 1]
    if shared:
        raise UsageError(
            f"ranks share a GPU, over which NCCL does not connect them: {'; '.join(shared)}; give each its "
            "own, such as torch.device('cuda', LOCAL_RANK), or use backend: gloo"
        )


def _devices(tensors: Mapping[str, Tensor]) -> dict[str, torch.device]:
    return {name: tensor.device for name, tensor in tensors.items()}


def _shown(devices: Mapping[str, torch.device]) -> str:
    return some_of([f"{name} on {device}" for name, device in devices.items()], _MOST_NAMES)
