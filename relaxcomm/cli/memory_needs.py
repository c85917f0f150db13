"""What an algorithm needs in memory, in words."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from relaxcomm.cli.tree import Node
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import RelaxcommError
from relaxcomm.network.transport import Membership
from relaxcomm.planner.footprint import footprint
from relaxcomm.tensors.buckets import Item
from relaxcomm.topology import Topology

MEMORY_MEANS = "of each worker above the model, .grad and the optimizer, in bytes a float32 parameter"
_TENSORS, _SIDE = 16, 32  # of the model whose state is counted


def memory_nodes(algorithm: Algorithm, workers: Sequence[int], topology: Topology) -> tuple[Node, ...]:
    """The memory at each world size: what lasts, and what comes to it while messages are under way."""
    return tuple(
        Node(f"{size} workers" if size > 1 else "1 worker", _in_words(algorithm, size, topology))
        for size in workers
    )


def _in_words(algorithm: Algorithm, size: int, topology: Topology) -> str:
    items = [Item(f"{index}", torch.zeros(_SIDE, _SIDE)) for index in range(_TENSORS)]
    try:
        found = [footprint(algorithm, items, Membership(rank, size), topology) for rank in range(size)]
    except RelaxcommError as error:
        return f"not possible: {error}"
    kept = sum(one.kept for one in found) / size
    buffers = sum(one.buffers for one in found) / size
    under_way = sum(one.under_way for one in found) / size
    return f"{kept:.1f} kept, {buffers:.1f} in buffers, {under_way:.1f} more while messages are under way"
