"""Every public docstring has an example, and every example is run as it stands."""

import ast
import doctest
import importlib
import inspect
import re
import types
from pathlib import Path

import pytest

import relaxcomm
import relaxcomm.data
import relaxcomm.plugin
import relaxcomm.primitives
import relaxcomm.tasks
import relaxcomm.topology
from relaxcomm.config import registry

# Where they are installed, which is the repository or a wheel's.
PACKAGES = {
    name: Path(importlib.import_module(name).__path__[0]) for name in ("relaxcomm", "relaxcomm_algorithms")
}
NAMESPACES = (
    relaxcomm,
    relaxcomm.primitives,
    relaxcomm.plugin,
    relaxcomm.data,
    relaxcomm.tasks,
    relaxcomm.topology,
)
PARSER = doctest.DocTestParser()


def docstrings(package: str, folder: Path) -> dict[str, str]:
    """Every docstring with an example, by where it stands; of the files, so that none can be missed."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [package, *path.relative_to(folder).with_suffix("").parts]
        module = ".".join(parts).removesuffix(".__init__")
        source = path.read_text(encoding="utf-8")
        for name, text in _documented(ast.parse(source), module) if ">>>" in source else ():
            if ">>>" in text:
                found[name] = text
    return found


def _documented(node: ast.AST, name: str):
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        yield name, ast.get_docstring(node) or ""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.expr):  # which documents nothing, and is most of a file
            continue
        yield from _documented(inner, f"{name}.{inner.name}" if hasattr(inner, "name") else name)


EXAMPLES = {name: text for place in PACKAGES.items() for name, text in docstrings(*place).items()}


def public() -> dict[str, object]:
    """What users and authors of plug-ins meet: the namespaces, what is bundled, and the engine's methods."""
    named = {f"{space.__name__}.{name}": getattr(space, name) for space in NAMESPACES for name in dir(space)}
    named |= {f"algorithm {name}": entry.build for name, entry in registry.algorithms().items()}
    for role, found in registry.primitives().items():
        named |= {f"{role} {name}": cls for name, cls in found.items()}
    named |= {f"relaxcomm.Engine.{name}": one for name, one in inspect.getmembers_static(relaxcomm.Engine)}
    return {
        name: one
        for name, one in named.items()
        if not name.rpartition(".")[2].startswith("_") and _needs_example(one)
    }


def _needs_example(one: object) -> bool:
    if isinstance(one, type) and issubclass(one, Exception):
        return False  # whoever meets one has its message
    ours = (getattr(one, "__module__", None) or "relaxcomm").startswith("relaxcomm")
    return ours and isinstance(one, type | types.FunctionType | property)


PUBLIC = public()
CLASSES = [one for one in PUBLIC.values() if not isinstance(one, property)]
ENGINE = {f"{one.__module__}.{one.__qualname__}" for one in relaxcomm.Engine.__mro__}
"""Its parts, whose properties do not say where they are defined."""
IN_PUBLIC = {f"{one.__module__}.{one.__qualname__}" for one in CLASSES}


def examples(text: str) -> list[doctest.Example]:
    return PARSER.get_examples(text)


def copyable(name: str) -> bool:
    """Whether users and authors of plug-ins see an example."""
    return name in IN_PUBLIC or name.rpartition(".")[0] in ENGINE


def module_of(name: str) -> types.ModuleType:
    """The module in which a docstring stands."""
    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            name = name.rpartition(".")[0]


def is_echo(example: doctest.Example) -> bool:
    """Whether an example shows no more than what it says itself."""
    source, want = (re.sub(r"[\s'\"]", "", text) for text in (example.source, example.want))
    return source == want


def test_nothing_public_is_missed():
    assert len(PUBLIC) > 150
    assert {"relaxcomm.attach", "relaxcomm.primitives.top_k", "relaxcomm.plugin.Exchange"} < PUBLIC.keys()
    assert {"algorithm bsp", "topology ring", "relaxcomm.Engine.no_sync"} < PUBLIC.keys()
    assert sum(text.count(">>>") for text in EXAMPLES.values()) == sum(
        sum(line.lstrip().startswith(">>> ") for line in path.read_text(encoding="utf-8").splitlines())
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
    )


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_docstring_shows_an_effect(name):
    shown = examples(inspect.getdoc(PUBLIC[name]) or "")
    assert any(example.want and not is_echo(example) for example in shown), f"{name} shows no effect"


def test_an_echo_is_no_effect():
    echo, effect = examples(">>> top_k(density=0.1)\ntop_k(density=0.1)\n>>> sum([1, 2])\n3\n")
    assert is_echo(echo)
    assert not is_echo(effect)


@pytest.mark.filterwarnings("ignore::relaxcomm.ConfigWarning")
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, tmp_path, monkeypatch):
    """An example imports all that it uses, so that it can be copied; one of the inside need not."""
    monkeypatch.chdir(tmp_path)
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    names = {} if copyable(name) else dict(vars(module_of(name)))
    test = PARSER.get_doctest(EXAMPLES[name], {**names, "__name__": "example"}, name, None, None)
    report: list[str] = []
    failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert tried > 0
    assert failed == 0, "".join(report)
