"""What an exchange asks the network to do: pure data, no I/O.

Exchanges yield operations, the engine labels them and hands them to a transport. Tensors
inside an operation belong to it: a transport may overwrite them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

Reduction: TypeAlias = Literal["mean", "sum", "max"]
Received: TypeAlias = "Tensor | Mapping[int, Tensor]"


@dataclass(frozen=True)
class Label:
    """Where in the run an operation stands; every rank must issue the same labels in the same order."""

    step: int
    rule: str
    unit: int = 0
    stage: int = 0

    def __str__(self) -> str:
        return f"step {self.step}, rule {self.rule}, unit {self.unit}, stage {self.stage}"


@dataclass(frozen=True, eq=False)
class AllReduce:
    """Reduce `tensor` elementwise over all ranks; received: a tensor of the same shape."""

    tensor: Tensor
    reduction: Reduction = "mean"


@dataclass(frozen=True, eq=False)
class AllGather:
    """Collect `tensor` from all ranks; received: `[world_size, *shape]`, row r from rank r."""

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class AllToAll:
    """Send row r of `tensor` (`[world_size, ...]`) to rank r; received: row r came from rank r."""

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Send to some ranks and receive from some; `receives` holds buffers of the expected shape.

    Received: `{rank: tensor}` for every rank in `receives`.
    """

    sends: Mapping[int, Tensor]
    receives: Mapping[int, Tensor]


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Copy `tensor` of rank `root` to all ranks; received: that tensor."""

    tensor: Tensor
    root: int = 0


@dataclass(frozen=True, eq=False)
class Agree:
    """Reduce a small CPU tensor over all ranks, for decisions that the host must know."""

    tensor: Tensor
    reduction: Reduction = "sum"


@dataclass(frozen=True, eq=False)
class Request:
    """Ask the service that every rank runs for this rule and bucket; others need not take part.

    Row k of `tensor` (`[num_ranks, ...]`) goes to the k-th of `ranks`, by default to all in order;
    received: a tensor like `reply`, whose row k is its answer. The tensors are on the CPU. A rank may be
    kept waiting until the service has heard from others.
    """

    tensor: Tensor
    reply: Tensor
    ranks: tuple[int, ...] | None = None

    @property
    def asked(self) -> Sequence[int]:
        """The ranks that are asked, in the order of the rows."""
        return range(len(self.tensor)) if self.ranks is None else self.ranks


Operation: TypeAlias = AllReduce | AllGather | AllToAll | Neighbors | Broadcast | Agree | Request
