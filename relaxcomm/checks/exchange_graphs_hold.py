"""Checks of exchanges: what they do over one graph and another, and over graphs that change."""

from __future__ import annotations

import torch

from relaxcomm.checks.exchange_trials import (
    ROUNDS,
    exchanged,
    mean_of,
    over_all,
    size_of,
    sizes_of,
    tensor_of,
    topology_of,
)
from relaxcomm.checks.exchanges_hold import coder_for
from relaxcomm.checks.finding import expect
from relaxcomm.errors import TopologyError
from relaxcomm.roles import Exchange
from relaxcomm.topology import Topology, complete, from_networkx, hierarchical, in_turn, ring, star


def use_of_topologies_is_declared(exchange: Exchange) -> None:
    """What exchanges with all ranks does the same over every graph, and what uses one does not."""
    if exchange.topology_override() is not None:
        return
    size = sizes_of(exchange)[-1]
    graphs: tuple[Topology, Topology] = (ring(), star())
    if size == 2:  # of which all graphs are the same
        return
    if exchange.facts.topology == "groups":
        graphs = hierarchical(sizes=(size - 2, 2)), hierarchical(sizes=(size - 1, 1))
    one, other = (exchanged(exchange, coder_for(exchange), size, topology=graph) for graph in graphs)
    same = all(a.sent == b.sent and torch.equal(a.result, b.result) for a, b in zip(one, other, strict=True))
    if exchange.facts.topology == "complete":
        expect(same, f"declares to exchange with all ranks, but {graphs[0]!r} and {graphs[1]!r} differ")
    else:
        expect(not same, f"declares to use the {exchange.facts.topology}, but all of them come to the same")


def kept_state_is_declared(exchange: Exchange) -> None:
    """Ranks come together over graphs that change, and any tensor can be exchanged, or it is declared."""
    facts = exchange.facts
    if facts.returns != "mean" or not facts.collective or not over_all(exchange):
        return
    if facts.topology == "graph" and exchange.topology_override() is None and not facts.needs_fixed_graph:
        _come_together_over_changes(exchange)
    size = size_of(exchange)
    for graph in () if facts.follows_parameters else _graphs_of(exchange, size):
        found = exchanged(
            exchange, coder_for(exchange), size, start=lambda rank: tensor_of(9), topology=graph
        )
        off = float((torch.stack([one.result for one in found]).mean(0) - mean_of(size)).abs().max())
        wrong = f"the mean of other tensors than parameters is {off:.3g} off"
        expect(off < 1e-5, f"{wrong}; declare follows_parameters")


def _come_together_over_changes(exchange: Exchange) -> None:
    """Over graphs that change ranks come as near to each other as over the slowest of them, if it stays."""
    size, start, graphs = sizes_of(exchange)[-1], tensor_of(0), (complete(), ring(), star())

    def apart(topology: Topology) -> float:
        found = exchanged(
            exchange,
            coder_for(exchange),
            size,
            steps=ROUNDS,
            topology=topology,
            start=lambda rank: start.clone(),
        )
        return max(float((one.result - found[0].result).abs().max()) for one in found)

    changing = apart(in_turn(topologies=graphs))
    if changing < 1e-3:
        return
    staying = max(map(apart, graphs))
    begun = max(float((tensor_of(rank) - start).abs().max()) for rank in range(size))
    expect(staying < begun, f"ranks come no nearer: {staying:.3g} apart after {ROUNDS} exchanges")
    wrong = f"goes wrong over graphs that change: {changing:.3g} apart, and {staying:.3g} over one that stays"
    expect(changing < 10 * staying, f"{wrong}; declare needs_fixed_graph")


def _graphs_of(exchange: Exchange, size: int) -> list[Topology]:
    """Graphs that it takes, where there may be one with directions that is not balanced."""
    import networkx as nx

    uneven = from_networkx(nx.DiGraph([*nx.utils.pairwise(range(size), cyclic=True), (0, 2)]))
    try:
        exchange.check_graph(uneven, size)
    except TopologyError:
        return [topology_of(exchange, size)]
    return [topology_of(exchange, size), *([uneven] if exchange.facts.topology == "graph" else [])]
