"""What benchmarks take and leave alike: arguments, and result files with the machine in them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from relaxcomm.kernels.dispatch import has_numba
from relaxcomm.system.files import write_whole

RESULTS = Path(__file__).parent / "results"


def make_parser(name: str, about: str | None, **counts: int) -> argparse.ArgumentParser:
    """Arguments of a benchmark: an option for each of `counts`, with its default, and the result file.

    Args:
        name: what its result files are called.
        about: the benchmark's docstring.
        counts: whole numbers above 0.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in counts.items():
        flag = f"--{option.replace('_', '-')}"
        parser.add_argument(flag, type=positive(int), default=default, help=f"default {default}")
    parser.add_argument("--output", type=result_file, default=dated(name), help="the result file")
    return parser


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """An argparse type: a number above 0."""

    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"got {text}; it must be a number above 0")
        return value

    parse.__name__ = kind.__name__  # argparse shows it when the text is no number at all
    return parse


def result_file(text: str) -> Path:
    """An argparse type: a file, so that a folder is refused before anything is measured."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"got {text}, which is a folder; name a file in it")
    return path


class Report:
    """A result file; made before anything is measured, since it notes how busy the machine is.

    Args:
        arguments: that `make_parser` read.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        told = {name: value for name, value in vars(arguments).items() if name != "output"}
        self._path = arguments.output
        self._head = {"environment": environment(), "arguments": told}

    def write(self, results: object) -> None:
        """Keep all repetitions that there are so far."""
        write_result(self._path, {**self._head, "results": results})

    def close(self, results: object) -> None:
        """Keep all repetitions, and say where."""
        self.write(results)
        print(f"all repetitions: {self._path}")


def why(error: Exception) -> str:
    """What a result file tells of a measurement that has failed."""
    return f"{type(error).__name__}: {error}"[-2000:]


def environment() -> dict[str, Any]:
    """What a reader needs to know of the machine, the versions and the moment."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: metadata.version(name) for name in ("numpy", "relaxcomm")},
            **({"numba": metadata.version("numba")} if has_numba() else {}),
        },
        "machine": {
            "cpu": cpu,
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "load_average_before": os.getloadavg()[0],
        },
    }


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None  # an unpacked archive has no history


def write_result(path: Path, content: dict[str, Any]) -> None:
    """Write one result file; ratios become objects, and lists of numbers stay on one line."""
    text = json.dumps(content, indent=1, default=asdict)
    one_line = re.sub(r"\[([^][{}]*)\]", lambda match: "[" + " ".join(match[1].split()) + "]", text)
    write_whole(path, one_line + "\n")  # who is ended while it writes leaves what was there before


def dated(name: str, kind: str = "json") -> Path:
    """The default place of a result: benchmarks/results/NAME-YYYYMMDD-HHMMSS.KIND, in UTC."""
    return RESULTS / f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.{kind}"
