"""The file that a run of the lab leaves: one JSON object a line, first of all what was asked for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import environment

Log = Callable[[str, Mapping[str, Any]], None]


def begin(path: Path, arguments: argparse.Namespace, **facts: Any) -> Log:
    """Write the machine, further facts and the arguments to a file; what is returned appends records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    asked = {key: str(value) for key, value in vars(arguments).items()}
    _append(path, "environment", {**environment(), **facts, "arguments": asked})

    def log(kind: str, record: Mapping[str, Any]) -> None:
        _append(path, kind, record)
        points = record.get("points") or [[]]
        print(
            kind, record.get("label"), record.get("rate"), record.get("learning_rate"), points[-1], flush=True
        )

    return log


def _append(path: Path, kind: str, record: Mapping[str, Any]) -> None:
    with path.open("a") as lines:
        lines.write(json.dumps({"kind": kind, **record}) + "\n")
