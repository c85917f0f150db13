"""What an algorithm needs in memory, in words."""

from __future__ import annotations

from collections.abc import Sequence

from relaxcomm.cli.message_sizes import CountedFor, type_name
from relaxcomm.cli.tree import Node
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import RelaxcommError
from relaxcomm.planner.footprint import footprints, least_and_most, mean_footprint
from relaxcomm.planner.replay import shapes_only
from relaxcomm.tensors.items import Item
from relaxcomm.topology import Topology

_TENSORS, _SIDE = 16, 32  # of a model of which only the size is known


def memory_node(algorithm: Algorithm, model: CountedFor, workers: Sequence[int], topology: Topology) -> Node:
    """The memory at each world size: what lasts, and what comes to it while messages are under way."""
    items = model.items if model.task is not None else shapes_only([(_SIDE, _SIDE)] * _TENSORS)
    dtypes = [*model.layouts]
    kind = f"{type_name(dtypes[0])} parameter" if len(dtypes) == 1 else "parameter"
    sizes: dict[str, list[str]] = {}
    for size in workers:
        sizes.setdefault(_in_words(algorithm, items, size, topology), []).append(str(size))
    found = (
        Node(f"{', '.join(alike)} worker{'' if alike == ['1'] else 's'}", words)
        for words, alike in sizes.items()
    )
    means = f"of each worker above the model, .grad and the optimizer, in bytes a {kind}"
    return Node("memory", means, tuple(found))


def _in_words(algorithm: Algorithm, items: Sequence[Item], size: int, topology: Topology) -> str:
    try:
        found = footprints(algorithm, items, size, topology)
    except RelaxcommError as error:
        return f"not possible: {error}"
    needed = mean_footprint(found, size)
    few = "" if len(found) == size else f"; counted for {len(found)} ranks"
    apart = least_and_most(found)
    each = (f"{found[rank].whole:.1f} in all on rank {rank}" for rank in apart or ())
    mean = f"; a mean of {' to '.join(each)}" if apart else ""
    return (
        f"{needed.kept:.1f} kept, {needed.buffers:.1f} in buffers, {needed.under_way:.1f} more while "
        f"messages are under way{mean}{few}"
    )
