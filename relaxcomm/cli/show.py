"""`relaxcomm show`: all that is known of an algorithm, a primitive or a configuration's composition."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from relaxcomm.cli.descriptions import algorithm_node, configuration_node, primitive_node
from relaxcomm.cli.exit_codes import readable
from relaxcomm.cli.job import configured_task, parse_option, parse_set
from relaxcomm.cli.message_sizes import CountedFor
from relaxcomm.cli.options import Traceback, option, written
from relaxcomm.cli.pictures import check_picture
from relaxcomm.cli.plan_arguments import parameter_count
from relaxcomm.cli.topology_facts import parse_topology, topology_node
from relaxcomm.cli.tree import Node, show as print_tree
from relaxcomm.config import Config, load_values, names_yaml, read_values, registry
from relaxcomm.config.configuration import WorkerCount
from relaxcomm.config.origin import Origin
from relaxcomm.config.uninstalled import refuse_missing
from relaxcomm.config.unread_keys import check_quorum
from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import closest, shown
from relaxcomm.tasks.task_loader import TaskFactory, find_task
from relaxcomm.topology import Topology

_WORKERS = (2, 4, 8, 16)
_DRAWN_WORKERS = 8
_NUM_PARAMETERS = 1_000_000


def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Of an algorithm or a primitive; or a YAML file, whose algorithm is shown.",
            show_default=False,
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        option("A parameter of NAME: --set steps=8; repeatable.", "--set", metavar="KEY=VALUE"),
    ] = None,
    workers: Annotated[
        int | None,
        option(
            "World size for the bytes; default: the file's, or several.",
            metavar="N",
            parser=written(WorkerCount),
        ),
    ] = None,
    num_parameters: Annotated[
        int | None,
        option(
            f"Model size for the bytes; default: the task's, or {_NUM_PARAMETERS:,}.",
            "--parameters",
            metavar="D",
            parser=parameter_count,
        ),
    ] = None,
    task: Annotated[
        str | None,
        option(
            "Count bytes for its model's own shapes: digits, {glyphs: {hidden: 4096}}, module:make.",
            metavar="TASK",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        option("Show it, and count bytes over it: ring, {file: {path: a.graphml}}.", metavar="TOPOLOGY"),
    ] = None,
    output: Annotated[
        Path | None, option("Draw the topology into it: .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    traceback: Traceback = False,
) -> None:
    """Show an algorithm's composition, parameters, bytes and reference; a primitive, with what it declares; a
    YAML file's algorithm; a topology."""
    with readable(traceback):
        _check_options(name, sets, topology, output)
        values = dict(map(parse_set, sets or ()))
        graph = None if topology is None else parse_topology(topology)
        model = _model(num_parameters, task)
        made = []
        if name is not None and names_yaml(name):
            node, workers = _configured(name, values, model, workers, graph)
            made = [node]
        elif name is not None:
            sizes = _WORKERS if workers is None else (workers,)
            made = nodes(name, values, model or CountedFor.matrix(_NUM_PARAMETERS), sizes, graph)
        if graph is not None:
            made.append(topology_node(graph, workers or _DRAWN_WORKERS, output))
        for node in made:
            print_tree(node)


def _check_options(
    name: str | None, sets: list[str] | None, topology: str | None, output: Path | None
) -> None:
    """Refuse options of what is not there."""
    if name is None and topology is None:
        raise ConfigError(
            "show needs the NAME of an algorithm or a primitive, a YAML file, or --topology TOPOLOGY"
        )
    if name is None and sets:
        raise ConfigError(
            f"--set {shown(sets[0])} gives a parameter of NAME, and there is none; write a topology's "
            "into it: --topology '{random_pairs: {rounds: 3}}'"
        )
    if output is not None and topology is None:
        raise ConfigError(
            f"--output {output} is of a topology's picture; add --topology TOPOLOGY, or leave it out"
        )
    if output is not None:
        check_picture("--output", output)


def _configured(
    name: str,
    values: dict[str, object],
    model: CountedFor | None,
    workers: int | None,
    topology: Topology | None,
) -> tuple[Node, int]:
    """The algorithm of a YAML file, and the world size that the bytes are for."""
    keys, origin = read_values(name, values if topology is None else {**values, "topology": topology})
    loaded = load_values(keys, origin)
    if workers is not None or "workers" in loaded.model_fields_set:
        with origin.told("membership", "quorum"):
            check_quorum(loaded, workers or loaded.workers)
    workers = workers or loaded.workers
    return configuration_node(name, loaded, model or _of_configured(origin, loaded), workers), workers


def _model(num_parameters: int | None, task: str | None) -> CountedFor | None:
    """What the bytes are counted for, if the command says so."""
    if task is None:
        return None if num_parameters is None else CountedFor.matrix(num_parameters)
    if num_parameters is not None:
        raise ConfigError("--task and --parameters both say how large the model is; leave one out")
    return _of_task(find_task(parse_option("--task", task)), task)


def _of_task(found: TaskFactory, name: str) -> CountedFor:
    return CountedFor.task_model(name, found.build(seed=0).model.named_parameters())


def _of_configured(origin: Origin, loaded: Config) -> CountedFor:
    if loaded.task is None:
        return CountedFor.matrix(_NUM_PARAMETERS)
    found = configured_task(loaded, origin)
    return _of_task(found, found.name)


def nodes(
    name: str,
    values: dict[str, object],
    model: CountedFor,
    workers: tuple[int, ...],
    topology: Topology | None = None,
) -> list[Node]:
    """The algorithm `name`, if there is one, and the primitives of that name.

    Raises: ConfigError with the closest match for an unknown name; PluginError for one that is left out;
        CompositionError for a topology that the algorithm cannot use.
    """
    primitives = [pair for found in registry.primitives().values() for pair in found.items()]
    algorithms = registry.algorithms()
    found = []
    if name in algorithms:
        found = [algorithm_node(algorithms[name], values, model, workers, topology)]
        values = {}  # these were the algorithm's
    found += [primitive_node(name, cls, values) for one, cls in primitives if one == name]
    if not found:
        registry.refuse_left_out(name)
        refuse_missing(name)
        if Path(name).exists():
            raise ConfigError(
                f"{name} is a path: show takes an installed name, or a YAML file (.yaml); check takes "
                f"paths: relaxcomm check {shlex.quote(name)}"
            )
        known = {*algorithms, *(one for one, _ in primitives)}
        raise ConfigError(f"unknown algorithm or primitive {name!r}{closest(name, known)}")
    return found
