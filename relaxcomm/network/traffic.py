"""Bytes that one rank hands to the network for an operation, and the messages that they are cut into.

Counted are payloads, without the headers of Gloo, TCP and IP. All-reduce is a ring and sends
`2 (N - 1) / N` of the tensor, all-gather `N - 1` times the tensor, all-to-all all rows but the
own. A broadcast goes down a binomial tree, in which the root sends the tensor up to `log2 N` times
and half of the ranks send nothing. All but the all-to-all consist of messages that wait for each other.
Of few numbers Gloo's all-reduce is no ring: one takes about `log2 N` messages in turn, each more one more
(measured over 20 ms with 4, 8, 16 and 32 ranks: 43, 61, 82 and 103 ms for one number).
"""

from __future__ import annotations

from relaxcomm.network.operations import REDUCED, AllGather, Broadcast, Neighbors, Operation, Request


def traffic(operation: Operation, rank: int, world_size: int) -> tuple[int, int]:
    """Bytes sent and received by a rank.

    Args:
        operation: what is exchanged.
        rank: whose bytes.
        world_size: number of ranks N.

    Returns: `(sent, received)` in bytes.
    """
    if world_size == 1:
        return 0, 0
    if isinstance(operation, Broadcast):
        place = (rank - operation.root) % world_size
        size = operation.tensor.nbytes
        return tree_children(place, world_size) * size, size if place else 0
    if isinstance(operation, Request):
        # The answers that this rank gives are counted when it gives them.
        others, rows = sum(other != rank for other in operation.asked), len(operation.asked)
        return others * operation.tensor.nbytes // rows, others * operation.reply.nbytes // rows
    if isinstance(operation, Neighbors):
        return (
            sum(tensor.nbytes for tensor in operation.sends.values()),
            sum(tensor.nbytes for tensor in operation.receives.values()),
        )
    moved = round(sent_share(type(operation), world_size) * operation.tensor.nbytes)
    return moved, moved


def sent_share(kind: type[Operation], world_size: int) -> float:
    """How much of its tensor a rank sends, on average over the ranks.

    Args:
        kind: of operation, but for `Neighbors`, who say themselves what goes to whom.
        world_size: number of ranks N.
    """
    if kind in REDUCED:
        return 2 * (world_size - 1) / world_size
    return world_size - 1 if kind is AllGather else (world_size - 1) / world_size


def messages(operation: type[Operation], world_size: int, numel: int | None = None) -> int:
    """Messages of an operation that wait for each other: each takes the latency of a link.

    Args:
        operation: its kind.
        world_size: number of ranks N.
        numel: entries of the tensor; None for many.

    Example:
        >>> from relaxcomm.network.operations import AllReduce, AllToAll
        >>> messages(AllReduce, 8), messages(AllGather, 8), messages(AllToAll, 8), messages(Request, 8)
        (14, 7, 1, 2)
        >>> messages(AllReduce, 8, numel=1)
        3
    """
    if world_size == 1:
        return 0
    if operation in REDUCED:
        ring, few = 2 * (world_size - 1), (world_size - 1).bit_length() - 1
        return ring if numel is None else min(ring, few + max(1, numel))
    if operation is AllGather:
        return world_size - 1
    if operation is Broadcast:
        return (world_size - 1).bit_length()
    return 2 if operation is Request else 1


def messages_of(operation: Operation, world_size: int) -> int:
    """How many messages of one operation wait for each other; its size is known.

    Example:
        >>> import torch
        >>> from relaxcomm.network.operations import Agree
        >>> messages_of(Agree(torch.ones(1)), 8), messages_of(Agree(torch.ones(100)), 8)
        (3, 14)
    """
    numel = operation.tensor.numel() if isinstance(operation, REDUCED) else None
    return messages(type(operation), world_size, numel)


def tree_children(place: int, world_size: int) -> int:
    """To how many ranks the one at `place` (0 is the root) sends in a binomial tree.

    In round i every rank below `2^i` that has the tensor sends it to the one `2^i` above.
    """
    distances = (1 << i for i in range((world_size - 1).bit_length()))
    return sum(place < distance and place + distance < world_size for distance in distances)
