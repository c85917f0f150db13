"""A topology as a picture."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from relaxcomm.cli.pictures import new_figure, write_picture
from relaxcomm.topology import Topology

Places: TypeAlias = Mapping[int, tuple[float, float]]


MOST_DRAWN = 64
"""Workers: names of more can hardly be read, and finding places for them takes long."""
_MOST_PANELS = 8


def draw_topology(topology: Topology, world_size: int, path: Path, subtitle: str = "") -> Path:
    """Draw the graph, one panel for each exchange of its period, of the first ones if there are many.

    Args:
        topology: what is drawn.
        world_size: number of ranks, `MOST_DRAWN` at most.
        path: of the picture; its ending says which kind.
        subtitle: what else there is to say of it.

    Returns: the path.
    """
    period = topology.period_steps(world_size)
    steps = min(period, _MOST_PANELS)
    side = max(4.6, 1.1 * math.sqrt(world_size))
    places = spread(topology, world_size, steps)
    figure = new_figure(side * steps, side + 0.6)
    for step, axis in enumerate(figure.subplots(1, steps, squeeze=False)[0]):
        _panel(axis, topology, world_size, step, places)
        if steps > 1:
            axis.set_title(f"exchange {step} of {period}", fontsize=10)
    name = textwrap.fill(
        f"{topology!r}, {world_size} rank{'s' if world_size > 1 else ''}", int(13 * side * steps)
    )
    figure.suptitle(f"{name}\n{subtitle}", fontsize=10)
    return write_picture(figure, path)


def _panel(axis: Any, topology: Topology, world_size: int, step: int, places: Places) -> None:
    import networkx as nx

    graph: Any = topology.graph(world_size, step)
    colour = {rank: f"C{i}" for i, group in enumerate(topology.groups(world_size)) for rank in group}
    size = 420 if world_size <= 16 else 200
    nx.draw_networkx_nodes(
        graph, places, ax=axis, node_color=[colour[rank] for rank in graph.nodes], node_size=size
    )
    nx.draw_networkx_labels(
        graph, places, ax=axis, font_color="white", font_size=10 if world_size <= 16 else 7
    )
    hidden = {(i, j) for i, j in graph.edges if _passes_over(i, j, places)}
    arrow = "-|>" if graph.is_directed() else "-"
    for edges, bend in ((hidden, 0.25), (set(graph.edges) - hidden, 0.15 if graph.is_directed() else 0.0)):
        style: dict[str, Any] = {"arrows": False}  # drawn together, which takes a hundredth of the time
        if bend:
            style = {"arrows": True, "arrowstyle": arrow, "connectionstyle": f"arc3,rad={bend}"}
        nx.draw_networkx_edges(
            graph, places, ax=axis, edgelist=sorted(edges), edge_color="#777777", node_size=size, **style
        )
    axis.margins(0.18)
    axis.set_axis_off()
    axis.set_aspect("equal", adjustable="datalim")


def spread(topology: Topology, world_size: int, steps: int) -> Places:
    """Where each rank stands: as far apart as in the graph of so many exchanges, and without on a circle."""
    import networkx as nx

    linked: Any = nx.empty_graph(world_size)
    for step in range(steps):
        linked.add_edges_from(topology.graph(world_size, step).edges)
    turns = [math.tau * rank / world_size for rank in range(world_size)]
    circle = {rank: (math.sin(turn), math.cos(turn)) for rank, turn in enumerate(turns)}
    found: Mapping[int, Any] = nx.kamada_kawai_layout(linked, pos=circle)
    return {rank: (float(x), float(y)) for rank, (x, y) in found.items()}


def _passes_over(one: int, other: int, places: Places) -> bool:
    """Whether a straight line between two ranks would pass over a third."""
    at = np.array([complex(*place) for rank, place in places.items() if rank not in (one, other)])
    start, way = complex(*places[one]), complex(*places[other]) - complex(*places[one])
    along = (at - start) / way
    return bool(((along.real > 0) & (along.real < 1) & (np.abs(along.imag) < 0.02)).any())
