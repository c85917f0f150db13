"""Whether tensors are the same on several ranks, without sending them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16}  # the rest as several int32, whose weighted sums lose no bits
_EXACT = 2**52  # a float64 holds every whole number up to twice this
_MIX = 6364136223846793005
_ROW = 2**14  # entries whose products stay in a CPU's cache, and are none that threads share
_MOST_ROWS = 256  # at a time on a GPU, for which a row is little


def digest(tensors: Iterable[Tensor]) -> str:
    """The same text for the same bits in the same order, whatever the shapes.

    Example:
        >>> digest([torch.zeros(2)]) == digest([torch.zeros(1), torch.zeros(1)])
        True
        >>> digest([torch.zeros(2)]) == digest([-torch.zeros(2)])
        False
    """
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        found.update(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().data)
    return found.hexdigest()


def checksum(tensor: Tensor) -> Tensor:
    """A whole number of a tensor's bits and their order, the same on every device, `[]` int64.

    It lies where the tensor does. Entry j of row k has the weight `(2 j + 1) _MIX^k`, modulo 2^64.

    Example:
        >>> checksum(torch.tensor([1.0, 2.0])), checksum(torch.tensor([2.0, 1.0]))
        (tensor(4286578688), tensor(4269801472))
    """
    bits = tensor.detach().contiguous().view(-1).view(_INTEGERS.get(tensor.element_size(), torch.int32))
    weights = torch.arange(1, 2 * min(_ROW, len(bits)) + 1, 2, device=bits.device)
    factor: Tensor | int = _MIX
    if bits.device.type != "cpu" and len(bits) > _ROW:
        powers = torch.full((min(_MOST_ROWS, len(bits) // _ROW + 1) + 1, 1), _MIX, device=bits.device)
        powers[0] = 1
        powers = powers.cumprod(0)
        weights, factor = (powers[:-1] * weights).view(-1), powers[-1, 0]
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for part in reversed(torch.split(bits, len(weights))):  # of which the last alone may be shorter
        total = total * factor + (part * weights[: len(part)]).sum()
    return total % _EXACT
