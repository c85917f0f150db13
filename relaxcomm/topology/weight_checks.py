"""Whether mixing weights bring all ranks to their mean; those of a plug-in may be anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relaxcomm.errors import TopologyError
from relaxcomm.topology.connectivity import Numbers
from relaxcomm.topology.mixing import Entries

_TOLERANCE = 1e-6
"""How far sums may be from 1: weights may have been computed in float32."""
_SHRINKS = 1e-9
"""By how much a period must shrink differences at least."""


def check(entries: Entries, world_size: int, name: str, *, balanced: bool, graph: Any | None) -> None:
    """Refuse what is no weights of these ranks, or weights under which their mean would move.

    Args:
        entries: of one step, a row for each rank.
        world_size: number of ranks.
        name: of the topology, for the error.
        balanced: whether plain mixing must keep the mean; else push-sum, which weighs what it has.
        graph: whose links they must be on if the topology has written them itself; None if they were made
            from its graph.

    Raises: TopologyError, naming the rank.
    """
    _check_shares(entries, world_size, name)
    if graph is not None:
        _check_links(entries, graph, name)
    if not balanced:
        worst, total = _farthest_from_one(entries.givers, entries.shares, world_size)
        least = int(np.argmin(entries.shares))
        if abs(total - 1) > _TOLERANCE or entries.shares[least] < 0:
            wrong = f"rank {worst} is taken with a total weight of {total:.9g}"
            negative = f"rank {entries.givers[least]} is taken with a weight of {entries.shares[least]:.3g}"
            raise TopologyError(
                f"{name}: {negative if entries.shares[least] < 0 else wrong}; for push_sum() no weight is "
                "negative, and each rank hands out just what it has: over all i, weights[i][j] sum to 1"
            )
        return
    for what, ranks in (("takes", entries.takers), ("is taken with", entries.givers)):
        worst, total = _farthest_from_one(ranks, entries.shares, world_size)
        if abs(total - 1) > _TOLERANCE:
            if graph is not None:
                is_wrong = ": its weights are not balanced"
                remedy = "let weights[i][j] sum to 1 over all j for each i, and over all i for each j"
            else:
                is_wrong = " is directed and not balanced"
                remedy = "use an undirected graph, give all ranks the same number of links in and out"
            raise TopologyError(
                f"{name}{is_wrong}: rank {worst} {what} a total weight of {total:.9g} instead of 1, so the "
                f"mean of the ranks would move; {remedy}, or use the exchange push_sum(), as the algorithm "
                "sgp does"
            )


def _farthest_from_one(ranks: Numbers, shares: NDArray[np.float64], world_size: int) -> tuple[int, float]:
    sums = np.bincount(ranks, shares, world_size)
    worst = int(np.argmax(np.abs(sums - 1)))
    return worst, float(sums[worst])


def _check_shares(entries: Entries, world_size: int, name: str) -> None:
    """Each rank takes a finite share of itself, even if it is 0, and of ranks that are there."""
    taken, own = entries.givers, entries.takers[entries.takers == entries.givers]
    if len(own) < world_size:
        rank = min(set(range(world_size)) - set(own.tolist()))
        raise TopologyError(f"{name}: the weights of rank {rank} lack its own; give weights[{rank}][{rank}]")
    for is_wrong, what in (
        ((taken < 0) | (taken >= world_size), f"give those of the ranks 0 to {world_size - 1}"),
        (~np.isfinite(entries.shares), "give finite numbers"),
    ):
        if is_wrong.any():
            at = int(np.argmax(is_wrong))
            raise TopologyError(
                f"{name}: rank {entries.takers[at]} takes of rank {taken[at]} with a weight of "
                f"{entries.shares[at]:.3g}; {what}"
            )


def _check_links(entries: Entries, graph: Any, name: str) -> None:
    """Each rank takes of those alone that are linked to it, or the graph would not be what is sent over."""
    for taker, giver, share in zip(
        entries.takers.tolist(), entries.givers.tolist(), entries.shares.tolist(), strict=True
    ):
        if share != 0 and taker != giver and not graph.has_edge(giver, taker):
            raise TopologyError(
                f"{name}: rank {taker} takes of rank {giver} with a weight of {share:.3g}, but the graph has "
                f"no link from {giver} to {taker}; add it to graph(), or leave weights[{taker}][{giver}] out"
            )


def check_period(product: NDArray[np.float64], name: str) -> None:
    """Refuse mixing under which ranks would not come to agree, period for period.

    Raises: TopologyError.
    """
    factor = np.inf
    if np.isfinite(product).all():
        values = np.linalg.eigvals(product)
        others = np.delete(values, np.argmin(np.abs(values - 1)))  # 1 is that of the mean, which stays
        factor = float(np.abs(others).max(initial=0.0))
    if factor > 1 - _SHRINKS:
        raise TopologyError(
            f"{name} has weights under which the ranks would never agree: from one period to the next their "
            f"differences become {factor:.3g} times as large; let no weight be negative, and each rank keep "
            "some weight on itself"
        )
