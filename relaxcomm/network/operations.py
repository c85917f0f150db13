"""What an exchange asks the network to do: pure data, no I/O.

Exchanges yield operations, the engine labels them and hands them to a transport. Tensors
inside an operation belong to it: a transport may overwrite them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from torch import Tensor

Reduction: TypeAlias = Literal["mean", "sum", "max"]
Received: TypeAlias = "Tensor | Mapping[int, Tensor]"


class Label(NamedTuple):
    """Where in the run an operation stands; every rank must issue the same labels in the same order."""

    step: int
    rule: str
    unit: int = 0
    stage: int = 0

    def __str__(self) -> str:
        return f"step {self.step}, rule {self.rule}, unit {self.unit}, stage {self.stage}"


@dataclass(frozen=True, eq=False)
class AllReduce:
    """Reduce `tensor` elementwise over all ranks; received: a tensor of the same shape.

    Example:
        >>> import torch
        >>> from relaxcomm import perform
        >>> from relaxcomm.plugin import AllReduce
        >>> perform([AllReduce(torch.tensor([1.0])), AllReduce(torch.tensor([3.0]))])
        [tensor([2.]), tensor([2.])]
    """

    tensor: Tensor
    reduction: Reduction = "mean"


@dataclass(frozen=True, eq=False)
class AllGather:
    """Collect `tensor` from all ranks; received: `[world_size, *shape]`, row r from rank r.

    Example:
        >>> import torch
        >>> from relaxcomm import perform
        >>> from relaxcomm.plugin import AllGather
        >>> perform([AllGather(torch.tensor([1.0])), AllGather(torch.tensor([3.0]))])[0]
        tensor([[1.],
                [3.]])
    """

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class AllToAll:
    """Send row r of `tensor` (`[world_size, ...]`) to rank r; received: row r came from rank r.

    Example:
        >>> import torch
        >>> from relaxcomm import perform
        >>> from relaxcomm.plugin import AllToAll
        >>> perform([AllToAll(torch.tensor([1.0, 2.0])), AllToAll(torch.tensor([3.0, 4.0]))])
        [tensor([1., 3.]), tensor([2., 4.])]
    """

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Send to some ranks and receive from some; `receives` holds buffers of the expected shape.

    Args:
        sends: what each of some ranks gets.
        receives: what each of some ranks fills.
        on_host: whether this is in the host's memory, though the model is on a GPU; equal on all ranks.

    Received: `{rank: tensor}` for every rank in `receives`.

    Example:
        >>> import torch
        >>> from relaxcomm import perform
        >>> from relaxcomm.plugin import Neighbors
        >>> sender = Neighbors(sends={1: torch.tensor([5.0])}, receives={})
        >>> receiver = Neighbors(sends={}, receives={0: torch.empty(1)})
        >>> perform([sender, receiver])
        [{}, {0: tensor([5.])}]
    """

    sends: Mapping[int, Tensor]
    receives: Mapping[int, Tensor]
    on_host: bool = False


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Copy `tensor` of rank `root` to all ranks; received: that tensor.

    Args:
        tensor: what is copied, or filled.
        root: whose it is.
        on_host: whether it is in the host's memory, though the model is on a GPU; equal on all ranks.

    Example:
        >>> import torch
        >>> from relaxcomm import perform
        >>> from relaxcomm.plugin import Broadcast
        >>> perform([Broadcast(torch.tensor([1.0]), root=1), Broadcast(torch.tensor([3.0]), root=1)])
        [tensor([3.]), tensor([3.])]
    """

    tensor: Tensor
    root: int = 0
    on_host: bool = False


@dataclass(frozen=True, eq=False)
class Agree:
    """Reduce a small CPU tensor over all ranks, for decisions that the host must know.

    Example:
        >>> import torch
        >>> from relaxcomm import perform
        >>> from relaxcomm.plugin import Agree
        >>> perform([Agree(torch.tensor([1.0])), Agree(torch.tensor([0.0])), Agree(torch.tensor([1.0]))])
        [tensor([2.]), tensor([2.]), tensor([2.])]
    """

    tensor: Tensor
    reduction: Reduction = "sum"


@dataclass(frozen=True, eq=False)
class Request:
    """Ask the service that every rank runs for this rule and bucket; others need not take part.

    Row k of `tensor` (`[num_ranks, ...]`) goes to the k-th of `ranks`, by default to all in order;
    received: a tensor like `reply`, whose row k is its answer. Services, and what they answer, are on the
    CPU; `tensor` may be elsewhere. A rank may be kept waiting until the service has heard from others.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Request
        >>> request = Request(torch.zeros(2, 4), reply=torch.zeros(2, 8), ranks=(1, 3))
        >>> list(request.asked)
        [1, 3]
    """

    tensor: Tensor
    reply: Tensor
    ranks: tuple[int, ...] | None = None

    @property
    def asked(self) -> Sequence[int]:
        """The ranks that are asked, in the order of the rows."""
        return range(len(self.tensor)) if self.ranks is None else self.ranks


REDUCED = (AllReduce, Agree)
"""What reduces a tensor over all ranks; `isinstance` with `A | B` would take several times as long."""
Operation: TypeAlias = AllReduce | AllGather | AllToAll | Neighbors | Broadcast | Agree | Request
OPERATIONS: tuple[type, ...] = get_args(Operation)


def tensors_of(operation: Operation) -> Iterator[Tensor]:
    """All that an operation sends or fills.

    Example:
        >>> import torch
        >>> [len(one) for one in tensors_of(Neighbors({1: torch.zeros(2)}, {2: torch.zeros(3)}))]
        [2, 3]
    """
    for held in vars(operation).values():
        if isinstance(held, Tensor):
            yield held
        elif isinstance(held, Mapping):
            yield from held.values()
