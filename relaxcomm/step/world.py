"""One generation of membership: who takes part, over which network and graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.network.operations import Label, Operation, Received
from relaxcomm.network.transport import Membership, Pending, Transport
from relaxcomm.topology import Topology, complete


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

    def issue(self, operation: Operation, label: Label) -> Pending:
        """Start an operation."""
        return self.transport.issue(operation, label)

    def receive(self, pending: Pending) -> Received:
        """Wait for what an operation brings."""
        with self.statistics.waiting():
            return pending.wait()

    def run(self, operation: Operation, label: Label) -> Tensor:
        """Start an operation that brings one tensor, and wait for it."""
        return tensor_of(self.receive(self.issue(operation, label)))

    def meet(self, event: str, step: int | None = None) -> None:
        """Go on when all ranks have come to an event, see `Transport.meet`."""
        self.transport.meet(event, step)

    def gather(self, value: object, event: str, step: int | None = None) -> list[object]:
        """A picklable value of every rank, in rank order, at an event as `meet` has it."""
        return self.transport.gather_objects(value, event, step)


def tensor_of(received: Received) -> Tensor:
    """What came, where one tensor was asked for."""
    assert isinstance(received, Tensor), f"{received!r} is not one tensor"
    return received
