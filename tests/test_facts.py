"""What primitives declare is what is seen; `__all__` is exact; imports run one way."""

import ast
import subprocess
import sys
import types
from pathlib import Path

import torch

import relaxcomm
from relaxcomm.buckets import Bucket, Item

ROOMS = (
    *(
        "errors",
        "files",
        "limit",
        "memory",
        "precision",
        "deprecation",
        "validation",
        "docstrings",
        "frozen",
        "fragments",
        "counting",
        "norms",
        "schedules",
        "topology",
        "operations",
        "segments",
        "packing",
        "messages",
        "layout",
        "buckets",
        "transport",
        "pieces",
        "metrics",
        "data",
        "protocol",
    ),
    *(
        "primitives",
        "legality",
        "algorithm",
        "discovery",
        "registry",
        "grammar",
        "config",
        "engine",
        "ddp",
        "tasks",
        "schema",
        "examples",
        "checks",
        "doctor",
        "cli",
    ),
)


def test_all_is_exact():
    public = {
        name
        for name, value in vars(relaxcomm).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(relaxcomm.__all__)
    assert len(relaxcomm.__all__) == len(public)  # ruff keeps the order


def test_imports_run_one_way():
    source = Path(__file__).parents[1] / "relaxcomm"
    for path in source.rglob("*.py"):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        if room not in ROOMS:
            assert room in ("__init__", "__main__")
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or room == "legality":  # for the type checker alone
                continue
            root_name, _, path_inside = (node.module or "").partition(".")
            names = [path_inside] if path_inside else [alias.name for alias in node.names]
            others = [name.split(".")[0] for name in names if root_name == "relaxcomm"]
            for other in (one for one in others if path_inside or one in ROOMS):
                assert ROOMS.index(other) <= ROOMS.index(room), f"{path} imports {other}"


def test_channels_last_keeps_its_strides_in_a_bucket():
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    bucket = Bucket(0, [Item("a", torch.randn(5)), Item("b", weight)])
    flat = bucket.gather(bucket.empty())
    assert bucket.views(flat)[1].stride() == weight.stride()
    torch.testing.assert_close(bucket.views(flat)[1], weight, rtol=0, atol=0)


def test_a_command_starts_without_the_compiler():
    """Importing it takes as long as all of the rest; the first optimizer does so anyway."""
    program = "import sys, relaxcomm.cli; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
