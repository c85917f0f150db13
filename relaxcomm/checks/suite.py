"""Which checks apply to what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from relaxcomm.checks.algorithms_hold import algorithm_checks
from relaxcomm.checks.compositions import algorithm_around
from relaxcomm.checks.compressor_facts_hold import compressor_checks
from relaxcomm.checks.conduct import attributes, global_states, left_alone, nothing_is_added
from relaxcomm.checks.controllers_hold import controller_checks
from relaxcomm.checks.declarations import declaration_checks, name_is_declared
from relaxcomm.checks.exchange_facts_hold import exchange_checks
from relaxcomm.checks.finding import Finding, attempt, unending
from relaxcomm.checks.outers_hold import outer_checks
from relaxcomm.checks.partitions_hold import partition_checks
from relaxcomm.checks.payloads_hold import payload_checks
from relaxcomm.checks.topologies_hold import topology_checks
from relaxcomm.checks.triggers_hold import trigger_checks
from relaxcomm.checks.wrapped_compressors import wrapped_facts_are_true
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import discovery, registry
from relaxcomm.config.examples import from_example
from relaxcomm.config.grammar import arguments_of
from relaxcomm.config.uninstalled import is_path, refuse_missing
from relaxcomm.data import Partition
from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import meant, shown
from relaxcomm.roles import Compressor, Controller, Exchange, Outer, Payload, Trigger
from relaxcomm.system.time_limit import within
from relaxcomm.topology import Topology

LIMIT_SECONDS = 300.0  # of a check; bundled ones take some seconds


def check(target: str | Path, **parameters: Any) -> list[Finding]:
    """Run the contract suite on a plug-in, in this process and without a network.

    Args:
        target: the name of an installed algorithm or primitive, the folder of a package that need not be
            installed (with entry points in its pyproject.toml), or a file of Python.
        parameters: of the algorithm or primitive, as YAML has them; those that are required and not given
            are taken from the docstring's example.

    Returns: one finding for each check.

    Raises: ConfigError if there is no such name or path; PluginError for the name of what cannot be loaded.

    Example:
        >>> from relaxcomm import check
        >>> [finding.check for finding in check("disjoint")][4:]
        ['equality', 'parts', 'repeats', 'attributes', 'random numbers']
    """
    return list(findings(target, parameters))


def findings(
    target: str | Path, parameters: Mapping[str, Any], limit_seconds: float = LIMIT_SECONDS
) -> Iterator[Finding]:
    """The same one by one, as they are made.

    Args:
        target: as above.
        parameters: as above.
        limit_seconds: the longest that importing it, or one check, may take; then the rest of its subject's
            are left out.
    """
    if not isinstance(target, str | Path):
        raise ConfigError(
            f"{shown(target)} is neither a name nor a path; give the name of what is installed, such as "
            'check("top_k", density=0.1), or the path of the file or folder that defines it'
        )
    try:
        subjects = within(limit_seconds, lambda: list(_subjects(target)), end=True)
    except TimeoutError:
        yield unending(str(target), "import", limit_seconds)
        return
    for name, load in subjects:
        for finding in _of(name, load, parameters, partial(attempt, name, limit_seconds=limit_seconds)):
            yield finding
            if not finding.ended:
                break


def _of(
    name: str, load: Callable[[], Any], parameters: Mapping[str, Any], tried: Callable[..., Finding]
) -> Iterator[Finding]:
    """The findings of one class or function."""
    loaded: list[Any] = []

    def fetch() -> None:
        """It can be imported."""
        loaded.append(load())

    yield tried("import", fetch)
    if not loaded:
        return
    target = loaded[0]
    build: Callable[..., Any] = target if isinstance(target, type) else registry.Entry(name, target, "")
    arguments: dict[str, Any] = {}
    built: list[Any] = []

    def prepare() -> None:
        """It can be made of the parameters given, or of those in its docstring's example."""
        given = {**parameters, **from_example(target.__name__, target, parameters)}
        arguments.update(arguments_of(target, given))
        built.append(build(**arguments))

    yield tried("builds", prepare)
    if not built:
        return
    made, before, kept = built[0], global_states(), attributes(built[0])
    for check, run in (declaration_checks(build, target, arguments) | _by_role(name, made)).items():
        yield tried(check, run)
    around: list[Algorithm] = [made] if isinstance(made, Algorithm) else []
    if not around:
        yield tried("attributes", partial(nothing_is_added, made, kept))
        yield tried("random numbers", partial(left_alone, before))
        composed = tried("composes", lambda: around.extend(filter(None, [algorithm_around(made)])))
        if composed.fault is not None:
            yield composed
    for algorithm in around:
        for check, run in algorithm_checks(algorithm).items():
            yield tried(check, run)


def _by_role(name: str, made: object) -> dict[str, Callable[[], None]]:
    if isinstance(made, Algorithm):
        return {"name": partial(name_is_declared, name.rpartition(" ")[2], made)}
    if isinstance(made, Compressor):
        return compressor_checks(made) | {"wrapped": partial(wrapped_facts_are_true, made)}
    return next((checks(made) for role, checks in _CHECKS.items() if isinstance(made, role)), {})


_CHECKS: Mapping[type, Callable[[Any], dict[str, Callable[[], None]]]] = {
    Trigger: trigger_checks,
    Payload: payload_checks,
    Exchange: exchange_checks,
    Outer: outer_checks,
    Controller: controller_checks,
    Partition: partition_checks,
    Topology: topology_checks,
}


def _subjects(target: str | Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names, and what loads each."""
    if is_path(str(target)):  # before what is installed is imported: it may have the same modules
        refuse_missing(str(target))
        yield from _subjects_at(Path(target))
        return
    known: dict[str, list[tuple[str, Any]]] = {}
    for name, entry in registry.algorithms().items():
        known.setdefault(name, []).append((f"algorithm {name}", entry.build))
    for role, found in registry.primitives().items():
        for name, cls in found.items():
            known.setdefault(name, []).append((f"{role} {name}", cls))
    for name, loaded in known.get(str(target), ()):
        yield name, lambda loaded=loaded: loaded  # type: ignore[misc]
    if str(target) in known:
        return
    path = Path(target)
    if not path.exists():
        registry.refuse_left_out(str(target))
        raise ConfigError(
            f"{shown(str(target))} is neither an installed name nor a path{meant(str(target), known)}; "
            "one of your own has the path of its file or of its package's folder, such as ./my_plugin.py"
        )
    yield from _subjects_at(path)


def _subjects_at(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The same of a package's folder, or a file of Python."""
    points = registry.include(path)
    if not points:
        raise ConfigError(
            f"{path} declares nothing: a package has entry points relaxcomm.algorithms or "
            "relaxcomm.primitives in its pyproject.toml, a file @frozen primitives or functions -> Algorithm"
        )
    for point in points:
        yield point.name, partial(discovery.load, point)
