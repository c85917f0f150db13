"""What operations bring back, without an exchange."""

from __future__ import annotations

from collections.abc import Sequence

from relaxcomm.network import InProcessGroup, simulate
from relaxcomm.network.operations import Label, Operation, Received


def perform(operations: Sequence[Operation]) -> list[Received]:
    """Issue one operation on each simulated rank, and wait for what it receives.

    Args:
        operations: that of rank r at place r; all of one kind. A `Request` needs a service, so it cannot be
            among them.

    Returns: what each rank receives, in rank order.

    Raises: CommunicationError or DeadlockError for operations that do not fit each other.

    Example:
        >>> import torch
        >>> from relaxcomm import perform
        >>> from relaxcomm.plugin import AllReduce
        >>> perform([AllReduce(torch.tensor([1.0])), AllReduce(torch.tensor([3.0]))])
        [tensor([2.]), tensor([2.])]
    """

    def issue(group: InProcessGroup) -> Received:
        return group.transport().issue(operations[group.rank()], Label(0, "perform")).wait()

    return simulate(issue, len(operations))
