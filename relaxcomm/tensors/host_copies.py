"""Copies from the host to a GPU for which the host does not wait, and what is made there once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def kept_per_stream(most: int) -> Callable[[F], F]:
    """Keep what a function makes on a device, its last argument: apart for each stream of a GPU.

    Another stream might read it before it is there.

    Args:
        most: that are kept.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.host_copies import kept_per_stream
        >>> @kept_per_stream(8)
        ... def zeros(numel, device):
        ...     return torch.zeros(numel, device=device)
        >>> zeros(3, torch.device("cpu")) is zeros(3, torch.device("cpu"))
        True
    """

    def keeping(make: F) -> F:
        @functools.lru_cache(most)
        def of_stream(stream: torch.cuda.Stream | None, *given: Any) -> Any:
            return make(*given)

        @functools.wraps(make)
        def kept(*given: Any) -> Any:
            device = given[-1]
            return of_stream(torch.cuda.current_stream(device) if device.type == "cuda" else None, *given)

        return cast("F", kept)

    return keeping


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
