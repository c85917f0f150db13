"""Imports run one way, and a command starts without the compiler."""

import ast
import subprocess
import sys
from pathlib import Path

ROOMS = (
    *("errors", "system", "tensors", "fields", "network", "data", "monitoring", "tasks"),
    *("topology", "roles"),
    *(
        f"primitives.{role}"
        for role in ("controllers", "payloads", "triggers", "outers", "compressors", "exchanges")
    ),
    *("primitives", "composition", "plugin", "config", "replica", "engine", "integrations", "doctor"),
    *("training", "planner", "checks", "cli"),
)
"""From the ground up: a room imports only from itself and from those before it."""


def room_of(module: str) -> str:
    """The room that a module lies in: a folder, of the primitives one a role."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "primitives" else 1])


def test_imports_run_one_way():
    source = Path(__file__).parents[1] / "relaxcomm"
    modules = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in source.rglob("*.py")
    }
    for module, path in modules.items():
        if module in ("__init__", "__main__"):
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
