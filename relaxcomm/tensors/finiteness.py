"""Whether tensors hold NaN or infinity, at the price of one read."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from relaxcomm.tensors.precision import wide

_KNOWN = "known_finite"  # the version of a tensor that is


def is_finite(flat: Tensor) -> bool:
    """Whether every entry is finite; on a GPU the host waits, see `finite_flags`.

    A sum is not finite if an entry is not, and reads memory once (isfinite is 20 times slower on
    CPU); a sum that overflows although all entries are finite is looked at again, exactly.
    """
    if not _holds_numbers(flat) or is_known_finite(flat):
        return True
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    return bool(torch.isfinite(flat.sum(dtype=wide(flat.dtype)))) or bool(torch.isfinite(flat).all())


def know_finite(flat: Tensor) -> None:
    """Remember that every entry is finite, until torch writes to the tensor; who makes it may know that.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.finiteness import is_finite, know_finite
        >>> flat = torch.ones(2)
        >>> know_finite(flat)
        >>> is_finite(flat), is_finite(flat.div_(0))
        (True, False)
    """
    if not flat.is_inference():
        setattr(flat, _KNOWN, flat._version)


def is_known_finite(flat: Tensor) -> bool:
    """Whether who made a tensor knew that every entry is finite, and nobody has written to it since."""
    known = getattr(flat, _KNOWN, None)
    return known is not None and known == flat._version


def largest_entries(tensors: list[Tensor]) -> Tensor:
    """`max |x_i|` of each tensor, `[len(tensors)]`, on their device; in as many kernels for many as for few.

    Args:
        tensors: of one floating-point type, none of them empty.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.finiteness import largest_entries
        >>> largest_entries([torch.tensor([1.0, -3.0]), torch.zeros(2)])
        tensor([3., 0.])
    """
    return torch.stack(list(torch._foreach_norm(tensors, ord=math.inf)))


def _holds_numbers(tensor: Tensor) -> bool:
    """Whether it has entries that may not be finite."""
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() > 0


def finite_flags(tensors: Sequence[Tensor]) -> Tensor:
    """Whether every entry of each tensor is finite, `[len(tensors)]` of bool, on their device.

    `finite(x) = isfinite(max |x_i|)`: the number of kernels does not grow with that of tensors.

    Args:
        tensors: of one type, one or more.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.finiteness import finite_flags
        >>> finite_flags([torch.ones(3), torch.tensor([1.0, float("nan")]), torch.empty(0)])
        tensor([ True, False,  True])
    """
    looked_at = [index for index, one in enumerate(tensors) if _holds_numbers(one)]
    if not looked_at:
        return torch.ones(len(tensors), dtype=torch.bool, device=tensors[0].device)
    found = torch.isfinite(largest_entries([tensors[index] for index in looked_at]))
    if len(looked_at) == len(tensors):
        return found
    flags = torch.ones(len(tensors), dtype=torch.bool, device=found.device)
    for place, index in enumerate(looked_at):  # buffers that count, of which there are few
        flags[index] = found[place]
    return flags


def which_finite(tensors: Sequence[Tensor]) -> list[bool]:
    """Whether every entry of each tensor is finite; the host waits for a GPU once, however many they are.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.finiteness import which_finite
        >>> which_finite([torch.ones(3), torch.tensor([1.0, float("nan")])])
        [True, False]
    """
    if tensors and tensors[0].device.type == "cuda":
        found: list[bool] = finite_flags(tensors).tolist()
        return found
    return [is_finite(tensor) for tensor in tensors]


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Whether every entry of all tensors is finite, a scalar of bool on their device; see `finite_flags`.

    Args:
        tensors: of any types, one or more.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.finiteness import all_finite
        >>> all_finite([torch.ones(3), torch.ones(2).half()]), all_finite([torch.ones(3), torch.ones(2) / 0])
        (tensor(True), tensor(False))
    """
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor)
    return functools.reduce(torch.logical_and, (finite_flags(same).all() for same in by_type.values()))
