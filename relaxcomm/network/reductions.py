"""What operations between in-process ranks come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relaxcomm.network.operations import (
    REDUCED,
    AllGather,
    AllToAll,
    Broadcast,
    Neighbors,
    Operation,
    Reduction,
)
from relaxcomm.tensors.precision import HALVES


@dataclass(frozen=True, eq=False)
class Objects:
    value: object = None


class Meeting(Objects):
    """An event at which ranks wait for each other, in no time."""


def signature(operation: Operation | Objects, label: str) -> str:
    """What must be the same on all ranks of one operation."""
    shape = ""
    if not isinstance(operation, Objects | Neighbors):
        shape = f" {list(operation.tensor.shape)} {operation.tensor.dtype}"
    return f"{type(operation).__name__}{shape} at {label}"


def scaled(tensor: Tensor, reduction: Reduction, world_size: int) -> Reduction:
    """Divide what goes into a mean of half-precision tensors, whose sum could overflow; what is left to do.

    Wider tensors are divided at the end: their sum overflows where training is lost anyway.
    """
    if reduction != "mean" or tensor.dtype not in HALVES:
        return reduction
    tensor.mul_(1 / world_size)  # as DistributedDataParallel does, bit for bit
    return "sum"


def combine(posts: Mapping[int, Any]) -> dict[int, Any]:
    """What each rank receives when all have posted."""
    first, ranks = posts[0], range(len(posts))
    if isinstance(first, Objects):
        values = [posts[rank].value for rank in ranks]
        return {rank: list(values) for rank in ranks}
    tensors = [posts[rank].tensor for rank in ranks]
    if isinstance(first, REDUCED):
        left = [scaled(tensor, first.reduction, len(posts)) for tensor in tensors]
        total = _reduce(tensors, left[0])
        return {rank: tensors[rank].copy_(total) for rank in ranks}
    if isinstance(first, AllGather):
        stacked = torch.stack(tensors)
        return {rank: stacked.clone() for rank in ranks}
    if isinstance(first, AllToAll):
        return {rank: torch.stack([tensor[rank] for tensor in tensors]) for rank in ranks}
    assert isinstance(first, Broadcast)
    source = tensors[first.root].clone()
    return {rank: tensors[rank].copy_(source) for rank in ranks}


def _reduce(tensors: list[Tensor], reduction: Reduction) -> Tensor:
    if reduction == "max":
        return torch.stack(tensors).amax(0) if tensors[0].numel() else tensors[0].clone()
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total.div_(len(tensors)) if reduction == "mean" else total
