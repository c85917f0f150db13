"""The large entries of a tensor in a message of fixed size, in the order of their places."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.kernels.dispatch import on_its_device, uses_triton
from relaxcomm.kernels.magnitudes import magnitude_keys


def compact(
    tensor: Tensor,
    threshold: Tensor,
    largest: Tensor,
    capacity: int,
    *,
    dtype: torch.dtype,
    subtract: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The first `capacity` entries v with `|v| > t`, ascending by their places, and how many there are.

    Args:
        tensor: `[numel]`; with `subtract` what is sent is taken out of it.
        threshold: `[1]` int32, t as `normal_threshold` returns it.
        largest: `[ceil(numel / ROW)]` int32, of `magnitude_statistics`.
        capacity: entries that a message holds; further ones stay in the tensor.
        dtype: of v, which entries are rounded to before they are looked at.
        subtract: whether the tensor is to become what is still to be sent.

    Returns: values `[capacity]`, indices `[capacity]` int32 and count `[1]` int32; what is unused is 0.

    Example:
        >>> import torch
        >>> from relaxcomm.kernels.magnitude_statistics import magnitude_statistics
        >>> u = torch.tensor([3.0, -1.0, 2.0, -4.0])
        >>> threshold = torch.tensor([1.5]).view(torch.int32)
        >>> compact(u, threshold, magnitude_statistics(u).largest, 2, dtype=torch.float32, subtract=True)
        (tensor([3., 2.]), tensor([0, 2], dtype=torch.int32), tensor([2], dtype=torch.int32))
        >>> u
        tensor([ 0., -1.,  0., -4.])
    """
    if uses_triton(tensor):
        from relaxcomm.kernels.compiled import triton_compaction

        with on_its_device(tensor):
            return triton_compaction.launch(tensor, threshold, largest, capacity, dtype, subtract)
    values = tensor.to(dtype)
    chosen = magnitude_keys(values) > threshold
    places = chosen.cumsum(0) - 1
    sent = chosen & (places < capacity)
    slots = torch.where(sent, places, capacity)  # one behind the message takes what is not sent
    held = values.new_zeros(capacity + 1).scatter_(0, slots, values)
    numbers = torch.arange(tensor.numel(), dtype=torch.int32, device=tensor.device)
    indices = numbers.new_zeros(capacity + 1).scatter_(0, slots, numbers)
    if subtract:
        tensor.copy_(torch.where(sent, tensor - values, tensor))
    return held[:capacity], indices[:capacity], sent.sum(dtype=torch.int32).view(1)
