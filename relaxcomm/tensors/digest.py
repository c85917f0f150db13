"""Whether tensors are the same on several ranks, without sending them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16}  # the rest as several int32, whose weighted sums lose no bits
_LEFT = 12  # bits of a sum, so that a float64 holds the others; the highest tell the most
_MIX = -7046029254386353131, -4658895280553007687  # odd, as SplitMix64 has them
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
        found.update(_entries(tensor).view(torch.uint8).cpu().numpy().data)
    return found.hexdigest()


def checksum(tensor: Tensor) -> Tensor:
    """A whole number of a tensor's bits and their order, the same on every device, `[]` int64.

    It lies where the tensor does, and a float64 holds it. Entry j of row k has the weight `r(j) r(_ROW + k)`,
    modulo 2^64, where r is odd and looks random. Sums of regular weights, such as 2 j + 1, are multiples of
    large powers of two, and so are the differences between the bits of x and 2 x.

    Example:
        >>> checksum(torch.tensor([1.0, 2.0])), checksum(torch.tensor([2.0, 1.0]))
        (tensor(2064922434791424), tensor(-425188607428608))
    """
    bits = _entries(tensor).view(_INTEGERS.get(tensor.element_size(), torch.int32))
    rows, on_cpu = max(1, -(-len(bits) // _ROW)), bits.device.type == "cpu"
    numbers = _KEPT if on_cpu and rows <= _ROW else _odd_numbers(_ROW + rows, bits.device)
    weights, factors = numbers[:_ROW], numbers[_ROW : _ROW + rows]
    if on_cpu:
        parts = torch.split(bits, _ROW)
        sums = torch.stack([(part * weights[: len(part)]).sum() for part in parts]) * factors
    else:
        pairs = zip(torch.split(bits, _MOST_ROWS * _ROW), torch.split(factors, _MOST_ROWS), strict=True)
        sums = torch.stack(
            [(part * (some[:, None] * weights).view(-1)[: len(part)]).sum() for part, some in pairs]
        )
    return sums.sum() >> _LEFT


def _entries(tensor: Tensor) -> Tensor:
    """One after the other, `[numel]`; a view that is conjugate or negative is written out."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def _odd_numbers(count: int, device: torch.device) -> Tensor:
    """That look random and are the same everywhere, `[count]` int64."""
    numbers = torch.arange(1, count + 1, device=device) * _MIX[0]
    return ((numbers ^ (numbers >> 29)) * _MIX[1]) | 1


_KEPT = _odd_numbers(2 * _ROW, torch.device("cpu"))
