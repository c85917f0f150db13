"""Checks of exchanges: what they do over one graph and another, and over those that change or go one way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relaxcomm.checks.compressor_trials import drawn
from relaxcomm.checks.exchange_trials import (
    ROUNDS,
    coder_for,
    exchanged,
    mean_of,
    size_of,
    sizes_of,
    takes,
    topology_of,
)
from relaxcomm.checks.finding import expect
from relaxcomm.primitives.compressors.top_k import top_k
from relaxcomm.roles import Exchange
from relaxcomm.tensors.messages import SPARSE
from relaxcomm.topology import Topology, complete, from_networkx, hierarchical, in_turn, ring, star


def use_of_topologies_is_declared(exchange: Exchange) -> None:
    """What exchanges with all ranks does the same over every graph, and what uses one does not."""
    if exchange.topology_override() is not None:
        return
    size = sizes_of(exchange)[-1]
    if size == 2:  # of which all graphs are the same
        return
    in_groups = hierarchical(sizes=(size - 1, 1))
    graphs: tuple[Topology, Topology] = {
        "complete": (ring(), in_groups),
        "graph": (ring(), star()),
        "groups": (hierarchical(sizes=(size - 2, 2)), in_groups),
    }[exchange.facts.topology]
    one, other = (exchanged(exchange, size, topology=graph) for graph in graphs)
    same = all(a.sent == b.sent and torch.equal(a.result, b.result) for a, b in zip(one, other, strict=True))
    if exchange.facts.topology == "complete":
        expect(same, f"declares to exchange with all ranks, but {graphs[0]!r} and {graphs[1]!r} differ")
    else:
        expect(not same, f"declares to use the {exchange.facts.topology}, but all of them come to the same")


def kept_state_is_declared(exchange: Exchange) -> None:
    """Ranks come together over graphs that change, wherever the parameters are, or it is declared."""
    facts = exchange.facts
    if facts.returns != "mean" or not facts.collective:
        return
    if facts.topology == "graph" and exchange.topology_override() is None and not facts.needs_fixed_graph:
        _come_together_over_changes(exchange)
    size, coder = size_of(exchange), top_k(density=0.5) if SPARSE in facts.accepts else coder_for(exchange)
    for graph in () if facts.follows_parameters else (topology_of(exchange, size), *_one_way(exchange, size)):
        own, one, other = (
            exchanged(exchange, size, coder, start=start, topology=graph)
            for start in (None, drawn(8), drawn(9))
        )
        off = max(float((a.result - b.result).abs().max()) for a, b in zip(one, other, strict=True))
        if coder.facts.linear and _off([ended.held for ended in own], size) < 1e-5:
            off = max(off, _off([ended.result for ended in one], size))
        expect(
            off < 1e-5,
            f"what comes out is {off:.3g} off where the parameters are others, so what it keeps begins at "
            "them; declare follows_parameters",
        )


def one_way_links_even_out(exchange: Exchange) -> None:
    """Over a graph in which ranks do not give as much as they take, if it is taken, none counts for more."""
    size, agreed = size_of(exchange), drawn(0)
    for graph in _one_way(exchange, size):
        alike = exchanged(exchange, size, put_in=lambda rank: agreed.clone(), steps=3, topology=graph)
        off = max(float((one.result - agreed).abs().max()) for one in alike)
        expect(
            off < 1e-4,
            f"over links that go one way ranks that agree part, {off:.3g} off: send a weight along, mixed as "
            "the tensor is, and divide by what has come of it",
        )
        off = _off([one.held for one in exchanged(exchange, size, topology=graph)], size)
        expect(
            off < 1e-4,
            f"over links that go one way the mean of what ranks hold is {off:.3g} off: give all of it away, "
            "in shares that sum to 1, and let rest(state) return what is held beside the parameters",
        )


def _off(held: Sequence[Tensor], size: int) -> float:
    """How far the mean is from that of what all have put in."""
    return float((torch.stack([*held]).mean(0) - mean_of(size)).abs().max())


def _come_together_over_changes(exchange: Exchange) -> None:
    """Over graphs that change ranks come as near to each other as over the slowest of them, if it stays."""
    size, start, graphs = sizes_of(exchange)[-1], drawn(0), (complete(), ring(), star())

    def apart(topology: Topology) -> float:
        found = exchanged(exchange, size, steps=ROUNDS, topology=topology, start=start)
        return max(float((one.result - found[0].result).abs().max()) for one in found)

    changing = apart(in_turn(topologies=graphs))
    if changing < 1e-3:
        return
    staying = max(map(apart, graphs))
    wrong = f"goes wrong over graphs that change: {changing:.3g} apart, and {staying:.3g} over one that stays"
    expect(changing < 10 * staying, f"{wrong}; declare needs_fixed_graph")


def _one_way(exchange: Exchange, size: int) -> list[Topology]:
    """A graph with directions that is not balanced, if the exchange takes it."""
    import networkx as nx

    if exchange.facts.topology != "graph" or size == 2:  # of which all graphs are balanced
        return []
    uneven = from_networkx(nx.DiGraph([*nx.utils.pairwise(range(size), cyclic=True), (0, 2)]))
    return [uneven] if takes(exchange, size, uneven) else []
