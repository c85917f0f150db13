"""Imports run one way, and what takes long is imported where it is used."""

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

ROOMS = (
    *("errors", "system", "testing", "tensors", "kernels", "fields", "network"),
    *("data", "monitoring", "tasks"),
    *("topology", "roles"),
    *(
        f"primitives.{role}"
        for role in ("controllers", "payloads", "triggers", "outers", "compressors", "exchanges")
    ),
    *("primitives", "composition", "plugin", "config", "replica", "step", "carry", "planner"),
    *("engine.attaching", "engine.saved_state", "engine.loop", "engine.switching", "engine.reporting"),
    *("engine.loaders", "engine.membership", "engine", "checkpoint", "integrations", "doctor"),
    *("training", "checks", "cli"),
)
"""From the ground up: a room imports only from itself and from those before it."""


def room_of(module: str) -> str:
    """The room that a module lies in: a folder, of the primitives and the engine one within it."""
    parts = module.split(".")
    inner = ".".join(parts[:2])
    return inner if inner in ROOMS else parts[0]


@cache
def imports() -> dict[str, dict[str, Path]]:
    """The modules that each module imports, and in which file, those for types among them."""
    source = Path(__file__).parents[1] / "relaxcomm"
    modules = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in source.rglob("*.py")
    }
    found: dict[str, dict[str, Path]] = {}
    for module, path in modules.items():
        found[module] = {}
        if module in ("__init__", "__main__"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("relaxcomm."):
                continue
            for alias in node.names:
                whole = f"{node.module}.{alias.name}".removeprefix("relaxcomm.")
                found[module][whole if whole in modules else node.module.removeprefix("relaxcomm.")] = path
    return found


def test_imports_run_one_way():
    for module, targets in imports().items():
        for target, path in targets.items():
            assert ROOMS.index(room_of(target)) <= ROOMS.index(room_of(module)), f"{path} imports {target}"


def test_no_file_is_long():
    root = Path(__file__).parents[1]
    files = [path for folder in ("relaxcomm", "algorithms") for path in (root / folder).rglob("*.py")]
    sizes = {path.relative_to(root): len(path.read_text().splitlines()) for path in files}
    assert len(sizes) > 100
    assert {path: size for path, size in sizes.items() if size > 250} == {}


def test_no_file_imports_itself_through_others():
    known = imports()
    reached: dict[str, set[str]] = {}

    def all_below(module: str, way: tuple[str, ...] = ()) -> set[str]:
        assert module not in way, f"a circle: {' -> '.join((*way[way.index(module) :], module))}"
        if module not in reached:
            below = list(known.get(module, {}))
            reached[module] = set(below).union(*(all_below(one, (*way, module)) for one in below))
        return reached[module]

    for module in known:
        all_below(module)


def test_a_file_name_tells_where_it_lies():
    paths = [
        path for path in (Path(__file__).parents[1] / "relaxcomm").rglob("*.py") if path.stem != "__init__"
    ]
    names = Counter(path.stem for path in paths)
    assert [path for path in paths if names[path.stem] > 1] == []


def test_no_two_files_of_tests_have_one_name():
    """pytest would import but one of them."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


LATER = {
    "relaxcomm": {"torch"},
    "relaxcomm.cli.app": {"torch"},
    "relaxcomm.cli.top": {"torch"},
    "relaxcomm.cli.algorithms": {"relaxcomm.engine"},
    "relaxcomm.engine": {"networkx", "psutil", "relaxcomm.checks", "relaxcomm.checkpoint"},
    "relaxcomm.cli.compare": {"torch._dynamo", "networkx"},
    "relaxcomm.kernels.message_sums": {"triton", "numba"},
}
"""What our modules, imported one after the other, do not import."""


def test_what_takes_long_to_import_is_imported_where_it_is_used():
    """The compiler takes as long as all of the rest, and the first optimizer imports it anyway."""
    program = "import sys\n" + "".join(
        f"import {ours}; print('{ours}', *{others} & sys.modules.keys())\n" for ours, others in LATER.items()
    )
    found = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert found.stdout.splitlines() == [*LATER]
