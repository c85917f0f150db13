"""Three namespaces: for users, for compositions, for authors of primitives; each public name is in one."""

import ast
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import relaxcomm
from relaxcomm import plugin, primitives
from relaxcomm.config import registry
from relaxcomm.fields.frozen import Declared

ROOT = Path(__file__).parents[1]
NAMESPACES = (relaxcomm, plugin, primitives)
OUTWARD = [*(ROOT / "algorithms").glob("*.py"), *(ROOT / "relaxcomm/cli/template").glob("*.py.txt")]


def public(namespace: types.ModuleType) -> set[str]:
    return {
        name
        for name in dir(namespace)
        if not name.startswith("_") and not isinstance(getattr(namespace, name), types.ModuleType)
    }


def imported(path: Path) -> Iterator[tuple[str, ast.alias]]:
    """Each module that a file imports from, and what."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8").replace("$", "template_"))):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, alias) for alias in node.names)


def test_each_public_name_is_in_one_namespace():
    named = [name for namespace in NAMESPACES for name in public(namespace)]
    assert [name for name in named if named.count(name) > 1] == []


def test_what_a_user_has_to_look_through_is_short():
    assert len(public(relaxcomm)) <= 36


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda one: one.__name__)
def test_what_is_imported_is_exported(namespace):
    """`from x import y as y` is how a type checker is told so."""
    path = Path(namespace.__file__)
    stub = path.with_suffix(".pyi")  # of a namespace whose names are imported when they are used first
    names = [alias for _, alias in imported(stub if stub.exists() else path)]
    assert [alias.name for alias in names if alias.asname != alias.name] == []
    assert {alias.name for alias in names} - {"checkpoint"} == public(namespace)  # a namespace in itself


def test_each_bundled_primitive_is_in_the_namespace_of_primitives_by_its_name():
    found = {
        name: cls
        for known in registry.primitives().values()
        for name, cls in known.items()
        if cls.__module__.startswith("relaxcomm.")
    }
    assert {name for name in public(primitives) if inspect.isclass(vars(primitives)[name])} == set(found)
    assert [
        name for name, cls in found.items() if vars(primitives)[name] is not cls or cls.__name__ != name
    ] == []


def test_no_primitive_is_forgotten():
    rooms = ("primitives", "topology", "data", "fields")
    defined = {
        value.__name__
        for name, module in list(sys.modules.items())
        if name.startswith(tuple(f"relaxcomm.{room}." for room in rooms))
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Declared) and value.__name__[0].islower()
    }
    assert defined - public(primitives) == {"custom"}  # what from_networkx makes


def classes(hint: object) -> Iterator[type]:
    """The classes that an annotation names."""
    if inspect.isclass(hint):
        yield hint
    for inner in typing.get_args(hint):
        yield from classes(inner)


def test_what_an_author_is_given_and_gives_has_a_public_name():
    named = {
        value
        for space in NAMESPACES
        for name in public(space)
        if inspect.isclass(value := getattr(space, name))
    }
    roles = [one for one in vars(plugin).values() if inspect.isclass(one) and issubclass(one, Declared)]
    for cls in (*roles, relaxcomm.Topology, plugin.Context, plugin.ExchangedBucket, plugin.Served):
        methods = [one.fget if isinstance(one, property) else one for one in vars(cls).values()]
        for method in (cls, *filter(inspect.isfunction, methods)):
            for hint in typing.get_type_hints(method).values():
                unnamed = {one for one in classes(hint) if one.__module__.startswith("relaxcomm.")} - named
                assert not unnamed, f"{cls.__name__}: {method.__name__}"


@pytest.mark.parametrize("path", OUTWARD, ids=lambda path: path.name)
def test_algorithms_and_what_new_algorithm_writes_need_nothing_else(path):
    allowed = {namespace.__name__: public(namespace) for namespace in NAMESPACES}
    own = ("relaxcomm_algorithms", "template_package")
    for module, alias in imported(path):
        if not module.startswith("relaxcomm") or module.startswith(own) or alias.name in allowed:
            continue
        assert alias.name in allowed.get(module, ()) or f"{module}.{alias.name}" in allowed, (
            f"{path.name} imports {alias.name} from {module}, where it is not public"
        )
