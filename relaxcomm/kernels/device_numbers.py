"""Numbers that the host knows, as tensors that are sent to a device once."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.tensors.host_copies import kept_per_stream, on_device


@kept_per_stream(1024)
def device_numbers(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers as a tensor that must not be written into; the host waits for no copy.

    Args:
        numbers: of which a step asks for the same again.
        dtype: of the result.
        device: of the result.

    Returns: `[len(numbers)]`.

    Example:
        >>> import torch
        >>> one, again = (device_numbers((0.5, 0.5), torch.float32, torch.device("cpu")) for _ in range(2))
        >>> one, one is again
        (tensor([0.5000, 0.5000]), True)
    """
    return on_device(torch.tensor(numbers, dtype=dtype), device)
