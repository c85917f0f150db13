"""Bytes that one rank hands to the network for an operation.

Counted are payloads, without the headers of Gloo, TCP and IP. The formulae are those of ring
algorithms: all-reduce sends `2 (N - 1) / N` of the tensor, all-gather `N - 1` times the tensor,
all-to-all all rows but the own, broadcast once a rank but the last.
"""

from __future__ import annotations

from torch import Tensor

from relaxcomm.operations import Agree, AllGather, AllReduce, AllToAll, Broadcast, Operation


def size_bytes(tensor: Tensor) -> int:
    """Bytes of the entries of a tensor."""
    return tensor.numel() * tensor.element_size()


def ring_traffic(operation: Operation, world_size: int) -> tuple[int, int]:
    """Bytes sent and received by a rank.

    Args:
        operation: what is exchanged.
        world_size: number of ranks N.

    Returns: `(sent, received)` in bytes.
    """
    if world_size == 1:
        return 0, 0
    if isinstance(operation, AllReduce | Agree):
        moved = round(2 * (world_size - 1) / world_size * size_bytes(operation.tensor))
    elif isinstance(operation, AllGather):
        moved = (world_size - 1) * size_bytes(operation.tensor)
    elif isinstance(operation, AllToAll):
        moved = (world_size - 1) * size_bytes(operation.tensor) // world_size
    elif isinstance(operation, Broadcast):
        moved = round((world_size - 1) / world_size * size_bytes(operation.tensor))
    else:
        return (
            sum(size_bytes(tensor) for tensor in operation.sends.values()),
            sum(size_bytes(tensor) for tensor in operation.receives.values()),
        )
    return moved, moved
