"""What is known of an algorithm or a primitive, as a tree of named facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from relaxcomm.cli.field_words import parameter_nodes
from relaxcomm.cli.memory_needs import memory_node
from relaxcomm.cli.message_sizes import CountedFor, sent_in_words
from relaxcomm.cli.topology_facts import usable_topologies
from relaxcomm.cli.tree import Node
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.config import Config
from relaxcomm.config.examples import from_example, taken_in_words
from relaxcomm.config.grammar import parse_algorithm, parse_primitive
from relaxcomm.config.registry import Entry
from relaxcomm.errors import CompositionError
from relaxcomm.fields import docstrings
from relaxcomm.fields.docstrings import Docstring
from relaxcomm.fields.frozen import Declared
from relaxcomm.roles.context import Primitive
from relaxcomm.topology import Topology, complete


def algorithm_node(
    entry: Entry,
    values: Mapping[str, Any],
    model: CountedFor,
    workers: Sequence[int],
    topology: Topology | None = None,
) -> Node:
    """An algorithm: its parameters, its rules, and what it sends.

    Args:
        entry: the algorithm.
        values: parameters as YAML would hold them; what is required and missing comes from the example.
        model: for the bytes.
        workers: world sizes, for the bytes.
        topology: the configured graph, for the bytes; None for the default.

    Raises: ConfigError for a parameter that is not allowed, or that is missing here and in the example;
        CompositionError for a topology that the algorithm cannot use.
    """
    text = docstrings.read(entry.build)
    taken = from_example(entry.name, entry.build, values)
    built = parse_algorithm({"name": entry.name, **taken, **values})
    if topology is not None:
        built.check_topology(topology)
    return Node(
        entry.name,
        text.summary,
        (
            *_notes(text),
            Node("parameters", children=parameter_nodes(entry.build)),
            *_borrowed(taken),
            *_composition(built, model, workers, topology or complete()),
            *_sources(text, entry.origin),
        ),
    )


def configuration_node(name: str, config: Config, model: CountedFor, workers: int) -> Node:
    """A configuration: its algorithm and those of its phases, as they are composed, and what they send.

    Args:
        name: of the file.
        config: the configuration.
        model: for the bytes.
        workers: likewise.
    """
    phases = [(f"phase {index}", f"after {one.after_steps} steps") for index, one in enumerate(config.phases)]
    algorithms = (
        Node(label, when, _composition(one, model, (workers,), config.topology), term=one.name)
        for (label, when), one in zip([("algorithm", ""), *phases], config.algorithms, strict=True)
    )
    return Node(name, children=(Node("topology", repr(config.topology)), *algorithms))


def _composition(
    built: Algorithm, model: CountedFor, workers: Sequence[int], topology: Topology
) -> tuple[Node, ...]:
    """Its rules, and what they send and keep."""
    rules = (_rule_node(index, rule, model, workers, topology) for index, rule in enumerate(built.rules))
    controllers = (
        _primitive_in_short(f"controller {index}", one) for index, one in enumerate(built.controllers)
    )
    planner = () if built.planner is None else (_primitive_in_short("planner", built.planner),)
    return (
        *rules,
        *controllers,
        *planner,
        memory_node(built, model, workers, topology),
        Node("topologies", ", ".join(usable_topologies(built))),
    )


def primitive_node(name: str, cls: type[Declared], values: Mapping[str, Any]) -> Node:
    """A primitive: its role, parameters, and facts.

    Args:
        name: what users type.
        cls: the primitive.
        values: arguments as YAML would hold them; what is required and missing comes from the example.

    Raises: ConfigError for an argument that is not allowed, or that is missing here and in the example.
    """
    text = docstrings.read(cls)
    taken = from_example(name, cls, values)
    built = parse_primitive(cls.role, {name: {**taken, **values}})
    return Node(
        name,
        text.summary,
        (
            Node("role", cls.role),
            *_notes(text),
            Node("parameters", children=parameter_nodes(cls)),
            *_borrowed(taken),
            Node("facts", children=_facts(built)),
            *_sources(text, ""),
        ),
    )


def _rule_node(index: int, rule: Rule, model: CountedFor, workers: Sequence[int], topology: Topology) -> Node:
    parts = [_primitive_in_short(role, one) for role, one in rule.primitives.items()]
    parts.append(
        Node(
            "delay",
            f"{rule.delay} steps" if rule.delay != "unbounded" else "unbounded: applied when it arrives",
        )
    )
    if rule.select is not None:
        parts.append(Node("select", ", ".join(rule.select)))
    if rule.active != (0, None):
        start, stop = rule.active
        parts.append(Node("active", f"from step {start} " + (f"until step {stop}" if stop else "on")))
    parts.append(_sent_node(rule, model, workers, topology))
    return Node(f"rule {index}", children=tuple(parts))


def _sent_node(rule: Rule, model: CountedFor, workers: Sequence[int], topology: Topology) -> Node:
    try:
        covered = model.covered(rule)
    except CompositionError as error:
        return Node("sends", f"not possible: {error}")
    sent = tuple(
        Node(f"{size} workers" if size > 1 else "1 worker", sent_in_words(rule, covered, size, topology))
        for size in workers
    )
    return Node("sends", f"by each worker, for {covered.in_words(rule.compressor)} on {topology!r}", sent)


def _facts(primitive: Declared) -> tuple[Node, ...]:
    """What the primitive declares."""
    if not isinstance(primitive, Primitive) or primitive.declares is None:
        return ()
    meanings = docstrings.read(primitive.declares).arguments
    return tuple(
        Node(one.name, meanings[one.name], term=_value(getattr(primitive.facts, one.name)))
        for one in fields(primitive.declares)
    )


def _primitive_in_short(name: str, primitive: Declared) -> Node:
    return Node(name, docstrings.read(type(primitive)).summary, term=repr(primitive))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items()) or "none"
    if isinstance(value, frozenset | tuple):
        return ", ".join(sorted(map(str, value))) or "none"
    return "none" if value is None else str(value)


def _notes(text: Docstring) -> tuple[Node, ...]:
    return tuple(Node("about", paragraph) for paragraph in text.body)


def _sources(text: Docstring, origin: str) -> tuple[Node, ...]:
    named = {"reference": text.reference, "differs": text.differs, "provided by": origin}
    return tuple(Node(name, said) for name, said in named.items() if said)


def _borrowed(taken: Mapping[str, Any]) -> tuple[Node, ...]:
    if not taken:
        return ()
    return (Node("shown with", f"{taken_in_words(taken)}; --set {next(iter(taken))}=… changes it"),)
