"""Copies from the host to a GPU for which the host does not wait."""

from __future__ import annotations

import torch
from torch import Tensor


def stream_on(device: torch.device) -> torch.cuda.Stream | None:
    """The stream that a GPU works on now, or None on a CPU.

    What is made once and kept is kept apart for each: another one might read it before it is there.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.host_copies import stream_on
        >>> stream_on(torch.device("cpu")) is None
        True
    """
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host's on a device; on the CPU itself.

    Only from pinned memory a copy goes on beside the host, which PyTorch frees when it is over.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.host_copies import on_device
        >>> x = torch.ones(2)
        >>> on_device(x, torch.device("cpu")) is x
        True
    """
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
