"""Builds the archives, and tries the wheel in fresh environments that hold nothing else.

    make test-wheel WHEELS="python3.11=2.13.0 python3.13=2.15.0"

Each argument is an interpreter and the version of PyTorch for it, from where pip takes it
(PIP_EXTRA_INDEX_URL may name PyTorch's CPU index; builds for GPUs are several gigabytes). The other packages
are the newest that pip finds. A result file that `--output` names again is continued, and a row that it has
is replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import dated, environment
from tests.wheel.building import build
from tests.wheel.cells import Cell, try_out, write


def main() -> int:
    """Try the wheel in each environment; 1 if anything failed, or one could not be made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environments", nargs="+", type=_environment, metavar="PYTHON=TORCH")
    parser.add_argument("--output", type=Path, default=dated("wheel"), help="the result file")
    arguments = parser.parse_args()
    cells: list[Cell] = []
    is_left_out = False
    if arguments.output.exists():
        cells = [Cell(**found) for found in json.loads(arguments.output.read_text())["results"]]
    told = environment()
    with TemporaryDirectory(prefix="relaxcomm-wheel-") as folder:
        wheel = build(Path(folder))
        for python, torch in arguments.environments:
            try:
                found = try_out(python, torch, wheel)
            except RuntimeError as error:
                print(f"{python}={torch} is left out: {error}", file=sys.stderr, flush=True)
                is_left_out = True
                continue
            found = replace(found, commit=told["commit"], date=told["date"])
            cells = [one for one in cells if (one.python, one.torch) != (found.python, found.torch)]
            cells.append(found)
            write(arguments.output, told["machine"], cells)
            print(found.row(), flush=True)
            for name, step in found.failed().items():
                print(f"{name}:\n{step['said']}", file=sys.stderr)
    print(f"result: {arguments.output.with_suffix('.md')}")
    return 1 if is_left_out or any(cell.failed() for cell in cells) else 0


def _environment(text: str) -> tuple[str, str]:
    python, _, torch = text.rpartition("=")
    if not (python and torch):
        raise argparse.ArgumentTypeError(f"got {text!r}; write PYTHON=TORCH, such as python3.12=2.13.0")
    return python, torch


if __name__ == "__main__":
    sys.exit(main())
