"""What is known of a topology, and which topologies an algorithm can use."""

from __future__ import annotations

from pathlib import Path

from relaxcomm.cli.job import parse_option
from relaxcomm.cli.tree import Node
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import registry
from relaxcomm.config.examples import from_example
from relaxcomm.config.grammar import parse_primitive
from relaxcomm.errors import CompositionError
from relaxcomm.fields import docstrings
from relaxcomm.system.quantities import number
from relaxcomm.topology import Topology


def parse_topology(text: str) -> Topology:
    """A topology as YAML would hold it, such as `ring` or `{file: {path: net.graphml}}`.

    Raises: ConfigError.
    """
    parsed = parse_primitive("topology", parse_option("--topology", text))
    assert isinstance(parsed, Topology)
    return parsed


def topology_node(topology: Topology, workers: int, picture: Path) -> Node:
    """What is to be known of a topology, and where its picture is."""
    period, groups = topology.period_steps(workers), topology.groups(workers)
    facts = [
        Node("workers", str(workers)),
        Node("links", f"{number(topology.links(workers) / workers)} a worker and step"),
        Node("period", f"{period} step(s)"),
        Node("spectral gap", f"{topology.spectral_gap(workers):.4g} a step"),
    ]
    facts += [Node("groups", ", ".join(map(str, groups)))] if topology.has_groups else []
    return Node("topology", repr(topology), (*facts, Node("picture", str(picture))))


def usable_topologies(algorithm: Algorithm) -> list[str]:
    """Names of the discovered topologies that the algorithm can use; `complete` is the default.

    One with required arguments is tried with those of its example.
    """
    names = []
    for name, cls in sorted(registry.primitives()["topology"].items()):
        values = from_example(name, cls, docstrings.read(cls), {})
        made = parse_primitive("topology", {name: values} if values else name)
        assert isinstance(made, Topology)
        try:
            algorithm.check_topology(made)
        except CompositionError:
            continue
        names.append(name)
    return names
