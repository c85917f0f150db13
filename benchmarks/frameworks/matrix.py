"""Every framework's example with every family of algorithms: which trains, and which is refused."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from benchmarks.ports import free_port
from benchmarks.report import environment, write_result

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
FAMILIES: dict[str, Any] = {
    "gradients": "bsp",
    "sparse gradients": {"name": "topk_sgd", "density": 0.05},
    "few bits": "bytegrad",
    "averages": {"name": "local_sgd", "steps": 4},
    "outer step": {"name": "diloco", "steps": 4},
    "votes": "selsync",
    "gossip": "d_psgd",
    "server": {"name": "ssp", "staleness": 1},
    "asynchronous": "async_model_average",
    "late": {"name": "streaming_diloco", "steps": 4, "delay": 1},
    "clients": "fedavg",
    "growing batches": {"name": "adaptive_local_sgd", "steps": 4, "max_batch_size": 64},
}
"""An algorithm of each."""
ABOUT = {
    "gradients": "gradients, in every step",
    "sparse gradients": "their largest entries",
    "few bits": "1 to 8 bits an entry",
    "averages": "parameters, every few steps",
    "outer step": "seldom, with outer momentum",
    "votes": "when gradients change",
    "gossip": "with neighbours in a graph",
    "server": "with bounded staleness",
    "asynchronous": "in the background",
    "late": "hidden behind steps",
    "clients": "sampled clients' models",
    "growing batches": "batches grow with noise",
}
"""What the workers of each exchange."""
RANKS = {"accelerate": 2, "fsdp2": 4, "lightning": 2, "ray": 2, "torchtitan": 2, "transformers": 2}
"""The frameworks, and how many ranks hold their example; ray starts them itself."""
LOADER = ("clients", "growing batches")
"""Need `engine.loader`, while the examples' loaders are the frameworks' own."""
_AT_ONCE, _LIMIT_SECONDS, _EPOCHS = 2, 240, 3
_UNTRAINED = {"torchtitan": 5.0}  # of ln 256 for its bytes
_USUAL_UNTRAINED = 2.25  # of ln 10 for digits


@dataclass(frozen=True)
class Cell:
    """What was seen of a framework with a family.

    Args:
        framework, family: which.
        outcome: "trains", "refused" or "fails".
        loss: of the trained model; NaN without one.
        said: the error, if there was one.
    """

    framework: str
    family: str
    outcome: str
    loss: float
    said: str

    @property
    def is_wrong(self) -> bool:
        """Whether it is not as it must be: all train, but what needs a loader that the example lacks."""
        return self.outcome != ("refused" if self.family in LOADER else "trains")


def run(framework: str, family: str) -> Cell:
    """Train an example with an algorithm of a family."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "relaxcomm.yaml"
        config.write_text(yaml.safe_dump({"algorithm": FAMILIES[family], "timeout_seconds": 60}))
        script = str(EXAMPLES / framework / "after.py")
        command = [sys.executable]
        if framework != "ray":
            command += ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS[framework])]
            command += ["--master-port", str(free_port())]
        command += [script, "--epochs", str(_EPOCHS), "--config", str(config)]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        try:
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:  # on a loaded machine; the others of the table go on
            return Cell(framework, family, "fails", math.nan, str(error))
    found = [json.loads(line) for line in printed_lines(done.stdout) if line.startswith('{"loss"')]
    said_by_all = printed_lines(done.stderr + done.stdout)
    errors = [line.strip() for line in said_by_all if "relaxcomm.errors." in line]
    if done.returncode == 0 and found:
        loss, limit = float(found[0]["loss"]), _UNTRAINED.get(framework, _USUAL_UNTRAINED)
        return Cell(framework, family, "trains" if loss < limit else "fails", loss, "")
    said = errors[0].split("relaxcomm.errors.", 1)[1] if errors else (done.stderr or done.stdout)[-2000:]
    return Cell(framework, family, "refused" if errors else "fails", math.nan, said)


def run_all(cells: Sequence[tuple[str, str]]) -> list[Cell]:
    """Several at a time."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda cell: run(*cell), cells))


def write(path: Path, cells: Sequence[Cell]) -> None:
    """Keep all that was seen, and a table beside it."""
    versions = {name: metadata.version(name) for name in RANKS if name != "fsdp2"}
    write_result(
        path, {"environment": environment(), "frameworks": versions, "results": list(map(asdict, cells))}
    )
    path.with_suffix(".md").write_text(table(cells))


def table(cells: Sequence[Cell]) -> str:
    """A row for each family, a column for each framework: ✓ trains; "no" is refused, as it must be."""
    marks = {"trains": "✓", "refused": "no"}
    shown = {
        (cell.framework, cell.family): "**fails**" if cell.is_wrong else marks[cell.outcome] for cell in cells
    }
    frameworks = sorted({cell.framework for cell in cells})
    heads = ["family", "such as", "in short", *frameworks]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for family, algorithm in FAMILIES.items():
        name = algorithm if isinstance(algorithm, str) else algorithm["name"]
        row = [shown.get((framework, family), "") for framework in frameworks]
        lines.append(f"| {' | '.join([family, f'`{name}`', ABOUT[family], *row])} |")
    return "\n".join(lines) + "\n"


def printed_lines(text: str) -> list[str]:
    """Ray puts who says it before each line."""
    return [line[line.find('{"loss"') :] if '{"loss"' in line else line for line in text.splitlines()]
