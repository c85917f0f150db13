"""One generation of membership: who takes part, over which network and graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor

from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.network.operations import Agree, AllReduce, Label, Operation, Received, Reduction
from relaxcomm.network.transport import ALONE, Membership, Pending, Transport
from relaxcomm.topology import Topology, complete

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class World:
    """The ranks of a run; the only source of a rank or a world size.

    Args:
        transport: to the other ranks.
        statistics: which take the time that is spent waiting.
        topology: the configured graph.
    """

    transport: Transport
    statistics: Statistics
    topology: Topology = field(default_factory=complete)

    @property
    def membership(self) -> Membership:
        """This rank and the number of ranks."""
        return self.transport.membership

    @property
    def rank(self) -> int:
        """This rank."""
        return self.membership.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.membership.world_size

    @property
    def shard(self) -> Membership:
        """Which shard of its replica this rank holds, and how many there are: 1 where replicas are whole."""
        return ALONE if self.transport.shards is None else self.transport.shards.membership

    @property
    def is_sharded(self) -> bool:
        """Whether other ranks hold parts of this replica."""
        return self.transport.shards is not None

    @property
    def process(self) -> Membership:
        """This process among all, those that hold a replica together one after the other."""
        return self.transport.process

    def issue(self, operation: Operation, label: Label) -> Pending:
        """Start an operation."""
        return self.transport.issue(operation, label)

    def receive(self, pending: Pending) -> Received:
        """Wait for what an operation brings."""
        with self.statistics.waiting:
            return pending.wait()

    def run(self, operation: Operation, label: Label) -> Tensor:
        """Start an operation that brings one tensor, and wait for it."""
        return tensor_of(self.receive(self.issue(operation, label)))

    def over_shards(self, numbers: Tensor, label: Label, reduction: Reduction = "sum") -> Tensor:
        """Combine numbers over the ranks that hold the shards of this replica, who all ask; on a GPU sums."""
        shards = self.transport.shards
        if shards is None:
            return numbers
        if numbers.device.type == "cpu":
            operation: Operation = Agree(numbers, reduction)
        else:
            operation = AllReduce(numbers.clone(), "sum")
        return tensor_of(self.receive(shards.issue(operation, label)))

    def mean_over_shards(self, tensor: Tensor, label: Label) -> Tensor:
        """The mean over the ranks that hold the shards of this replica, who all ask; may be made in place."""
        shards = self.transport.shards
        if shards is None:
            return tensor
        return tensor_of(self.receive(shards.issue(AllReduce(tensor, "mean"), label)))

    def is_any_shard(self, bad: bool, label: Label) -> bool:
        """Whether something is so of any shard of this replica."""
        if not self.is_sharded:
            return bad
        return bool(self.over_shards(flag_of(bad), label, "max").item())

    def meet(self, event: str, step: int | None = None) -> None:
        """Go on when all ranks have come to an event, see `Transport.meet`."""
        self.transport.meet(event, step)

    def gather(self, value: T, event: str) -> list[T]:
        """A picklable value of every rank, in rank order, at an event as `meet` has it."""
        return cast("list[T]", self.transport.gather_objects(value, event))

    def gather_all(self, value: T, event: str) -> list[T]:
        """A picklable value of every process: of all ranks and those that hold a replica with them."""
        return self.transport.gather_all(value, event)


def flag_of(so: bool | Tensor) -> Tensor:
    """1 or 0 for ranks to add up, `[1]`, of a type that all of them have, whatever their default type.

    What a scalar on a device says stays there.
    """
    if isinstance(so, Tensor):
        return so.to(torch.float32).view(1)
    return torch.tensor([float(so)], dtype=torch.float32)


def tensor_of(received: Received) -> Tensor:
    """What came, where one tensor was asked for."""
    assert isinstance(received, Tensor), f"{received!r} is not one tensor"
    return received
