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
        source = _reduce(tensors, left[0])
    elif isinstance(first, AllGather):
        return {rank: torch.stack(tensors) for rank in ranks}
    elif isinstance(first, AllToAll):
        return {rank: torch.stack([tensor[rank] for tensor in tensors]) for rank in ranks}
    else:
        assert isinstance(first, Broadcast)
        source = tensors[first.root]
    return {rank: one if one is source else one.copy_(source) for rank, one in enumerate(tensors)}


def _reduce(tensors: list[Tensor], reduction: Reduction) -> Tensor:
    """All of them, in the memory of the first: of one rank, whose bucket may be large, nothing is copied."""
    total, *others = tensors
    for one in others:
        if reduction == "max":
            torch.maximum(total, one, out=total)
        else:
            total += one
    return total.div_(len(tensors)) if reduction == "mean" and others else total
