"""What is known of a topology, and which topologies an algorithm can use."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relaxcomm.cli.job import parse_option
from relaxcomm.cli.topology_picture import MOST_DRAWN, draw_topology
from relaxcomm.cli.tree import Node
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import registry
from relaxcomm.config.examples import from_example
from relaxcomm.config.grammar import parse_primitive
from relaxcomm.errors import CompositionError, ConfigError
from relaxcomm.system.quantities import number
from relaxcomm.topology import Topology
from relaxcomm.topology.mixing import entries_of

_MOST_FOR_GAP = 512  # workers: the time that it takes grows with the third power


def parse_topology(text: str) -> Topology:
    """A topology as YAML would hold it, such as `ring` or `{file: {path: net.graphml}}`.

    Raises: ConfigError.
    """
    parsed = parse_primitive("topology", parse_option("--topology", text))
    assert isinstance(parsed, Topology)
    return parsed


def topology_node(topology: Topology, workers: int, output: Path | None) -> Node:
    """What is to be known of a topology, and where its picture is, if a file for it is named.

    Raises: ConfigError for too many workers to draw; TopologyError if the graph cannot be used.
    """
    topology.check(workers)
    period, groups = topology.period_steps(workers), topology.groups(workers)
    if output is not None and workers > MOST_DRAWN:
        raise ConfigError(
            f"--output {output}: {MOST_DRAWN} workers at most are drawn: --workers {MOST_DRAWN}, or leave "
            "--output out"
        )
    gap = f"not computed for more than {_MOST_FOR_GAP} workers"
    if workers <= _MOST_FOR_GAP:
        gap = f"{topology.spectral_gap(workers):.4g} an exchange"
    facts = [
        Node("workers", str(workers)),
        Node("links", _links(topology, workers)),
        Node("period", "1 exchange" if period == 1 else f"{period} exchanges"),
        Node("spectral gap", gap),
    ]
    facts += [Node("groups", ", ".join(map(str, groups)))] if topology.has_groups else []
    if output is not None:
        drawn = draw_topology(topology, workers, output, f"spectral gap {gap}")
        facts.append(Node("picture", str(drawn)))
    return Node("topology", repr(topology), tuple(facts))


def _links(topology: Topology, workers: int) -> str:
    """To how many others a worker sends."""
    if topology.all_pairs:  # a list of them all would be long
        return f"{workers - 1} from each worker in an exchange"
    counts = []
    for step in range(topology.period_steps(workers)):
        found = entries_of(topology.weights(workers, step))
        counts.append(np.bincount(found.givers[found.takers != found.givers], minlength=workers))
    least, most = np.min(counts), np.max(counts)
    if least == most:
        return f"{most} from each worker in an exchange"
    return f"{least} to {most} from each worker in an exchange, {number(float(np.mean(counts)))} on average"


def usable_topologies(algorithm: Algorithm) -> list[str]:
    """Names of the discovered topologies that the algorithm can use; `complete` is the default.

    One with required arguments is tried with those of its example.
    """
    names = []
    for name, cls in sorted(registry.primitives()["topology"].items()):
        values = from_example(name, cls, {})
        made = parse_primitive("topology", {name: values} if values else name)
        assert isinstance(made, Topology)
        try:
            algorithm.check_topology(made)
        except CompositionError:
            continue
        names.append(name)
    return names
