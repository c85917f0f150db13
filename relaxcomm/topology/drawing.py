"""A topology as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx

from relaxcomm.errors import ConfigError
from relaxcomm.topology.base import Topology


def draw(topology: Topology, world_size: int, path: str | Path) -> None:
    """Draw the graph, one panel for each step of its period, with the mixing weights' spectral gap.

    Args:
        topology: what is drawn.
        world_size: number of ranks.
        path: of the picture; its ending says which kind.

    Raises: TopologyError if the graph cannot be used; ConfigError without matplotlib.

    Example:
        >>> draw(ring(), 6, "ring.png")
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("pictures need matplotlib: pip install 'relaxcomm[demo]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    topology.check(world_size)
    steps = topology.period_steps(world_size)
    figure, axes = pyplot.subplots(1, steps, figsize=(4.6 * steps, 5), squeeze=False, layout="constrained")
    for step, axis in enumerate(axes[0]):
        _panel(axis, topology, world_size, step)
        if steps > 1:
            axis.set_title(f"step {step} of {steps}", fontsize=11)
    gap = topology.spectral_gap(world_size)
    figure.suptitle(f"{topology!r}, {world_size} ranks\nspectral gap {gap:.3g} a step", fontsize=11)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(axis: Any, topology: Topology, world_size: int, step: int) -> None:
    graph: Any = topology.graph(world_size, step)
    groups = topology.groups(world_size)
    colour = {rank: f"C{index}" for index, group in enumerate(groups) for rank in group}
    places: Any = nx.kamada_kawai_layout(graph) if len(groups) > 1 else nx.circular_layout(graph)
    nx.draw_networkx(
        graph,
        places,
        ax=axis,
        node_color=[colour[rank] for rank in graph.nodes],
        edge_color="#888888",
        font_color="white",
        node_size=520,
        connectionstyle="arc3,rad=0.08" if graph.is_directed() else "arc3",
    )
    axis.margins(0.15)
    axis.set_axis_off()
    axis.set_aspect("equal")
