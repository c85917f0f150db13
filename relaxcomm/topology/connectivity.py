"""Whether all ranks hear of each other, and all are in a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relaxcomm.errors import TopologyError, some_of
from relaxcomm.fields.validation import shown

Numbers = NDArray[np.int64]


def check(takers: Numbers, givers: Numbers, world_size: int, name: str) -> None:
    """Refuse links over which a rank never hears of another.

    Args:
        takers, givers: the ends of each link, `[n]`.
        world_size: number of ranks.
        name: of the topology, for the error.

    Raises: TopologyError, naming the ranks.
    """
    import networkx as nx

    if _reaches_all(givers, takers, world_size) and _reaches_all(takers, givers, world_size):
        return
    union: Any = nx.DiGraph()
    union.add_nodes_from(range(world_size))
    union.add_edges_from(zip(givers.tolist(), takers.tolist(), strict=True))
    if not nx.is_weakly_connected(union):
        parts = sorted(sorted(part) for part in nx.weakly_connected_components(union))
        raise TopologyError(
            f"{name} falls into {len(parts)} parts for {world_size} workers, {parts}, which would "
            "never hear of each other; add links between them, or take another seed of a random graph"
        )
    deaf = _first_deaf(union)
    missing = sorted(set(union) - nx.ancestors(union, deaf) - {deaf})
    raise TopologyError(
        f"{name} is directed, and rank {deaf} never hears of ranks {listed(missing)}; add links "
        "until each rank reaches all others"
    )


def check_groups(groups: Sequence[Sequence[int]], world_size: int, name: str) -> None:
    """Refuse groups that do not hold each rank once.

    Raises: TopologyError, naming the groups.
    """
    try:
        right = Counter(chain(*groups)) == Counter(range(world_size)) and all(map(len, groups))
    except TypeError:  # a plug-in may return anything
        right = False
    if not right:
        raise TopologyError(
            f"{name} divides {world_size} workers into the groups {shown(groups)}; let groups() "
            f"put each rank from 0 to {world_size - 1} into one of them, and leave none empty"
        )


def listed(nodes: Any) -> str:
    """The first of them, and how many more there are."""
    return some_of([*map(str, nodes)], 8)


def _reaches_all(begins: Numbers, ends: Numbers, world_size: int) -> bool:
    """Whether what rank 0 knows comes to all along the links: each is followed once."""
    order = np.argsort(begins, kind="stable")
    followed = ends[order]
    starts = np.searchsorted(begins[order], np.arange(world_size + 1)).tolist()
    reached, newest = np.zeros(world_size, dtype=bool), [0]
    reached[0] = True
    while newest:
        heard = np.concatenate([followed[starts[rank] : starts[rank + 1]] for rank in newest])
        newest = np.unique(heard[~reached[heard]]).tolist()
        reached[newest] = True
    return bool(reached.all())


def _first_deaf(union: Any) -> int:
    """The first rank that does not hear of all others: those who do are the only part without a way out."""
    import networkx as nx

    parts = nx.condensation(union)
    ends = [part for part in parts if not parts.out_degree(part)]
    hear_all = parts.nodes[ends[0]]["members"] if len(ends) == 1 else frozenset()
    return next(int(rank) for rank in sorted(union) if rank not in hear_all)
