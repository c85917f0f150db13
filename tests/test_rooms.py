"""Imports run one way, `__all__` is exact, and a command starts without the compiler."""

import ast
import subprocess
import sys
import types
from pathlib import Path

import relaxcomm

ROOMS = (
    *("errors", "system", "tensors", "fields", "network", "data", "monitoring", "tasks"),
    *("topology", "roles"),
    *(
        f"primitives.{role}"
        for role in ("controllers", "payloads", "triggers", "outers", "compressors", "exchanges")
    ),
    *("composition", "config", "engine", "integrations", "doctor", "training", "checks", "cli"),
)
"""From the ground up: a room imports only from itself and from those before it."""


def test_all_is_exact():
    public = {
        name
        for name, value in vars(relaxcomm).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(relaxcomm.__all__)
    assert len(relaxcomm.__all__) == len(public)  # ruff keeps the order


def room_of(module: str) -> str:
    """The room that a module lies in: a folder, of the primitives one a role."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "primitives" else 1])


def test_imports_run_one_way():
    source = Path(__file__).parents[1] / "relaxcomm"
    modules = {
        ".".join(path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.py")
    }
    for module, path in modules.items():
        if module in ("__init__", "__main__", "primitives.__init__"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("relaxcomm."):
                continue
            for alias in node.names:
                whole = f"{node.module}.{alias.name}".removeprefix("relaxcomm.")
                target = whole if whole in modules else node.module.removeprefix("relaxcomm.")
                assert ROOMS.index(room_of(target)) <= ROOMS.index(room_of(module)), (
                    f"{path} imports {target}"
                )


def test_a_command_starts_without_the_compiler():
    """Importing it takes as long as all of the rest; the first optimizer does so anyway."""
    program = "import sys, relaxcomm.cli; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
