"""Graphs of the ranks: by name, from files, from networkx; mixing weights, checks and pictures."""

from relaxcomm.topology.base import Topology
from relaxcomm.topology.custom import custom, file, from_networkx
from relaxcomm.topology.drawing import draw
from relaxcomm.topology.drawn import erdos_renyi, random_regular
from relaxcomm.topology.grouped import hierarchical
from relaxcomm.topology.named import complete, grid, ring, star, torus
from relaxcomm.topology.powers import exponential, hypercube, one_peer_exponential
from relaxcomm.topology.turns import in_turn

__all__ = [
    "Topology",
    "complete",
    "custom",
    "draw",
    "erdos_renyi",
    "exponential",
    "file",
    "from_networkx",
    "grid",
    "hierarchical",
    "hypercube",
    "in_turn",
    "one_peer_exponential",
    "random_regular",
    "ring",
    "star",
    "torus",
]
