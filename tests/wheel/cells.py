"""What is tried in one environment, and the table of all of them."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.report import write_result
from tests.wheel.building import ROOT, command, install, new_environment

TEST_PACKAGES = ("pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.115", "jsonschema>=4.23")
CONFIGURATION = "algorithm: {name: local_sgd, steps: 8}\ntask: {digits: {epochs: 3}}\nworkers: 3\n"
EXAMPLES = ("tests/test_examples.py",)
# What needs no repository around it, and every name of torch's that is not public: FSDP's groups, the store
# of the default group, the Flight Recorder, the files of torch.distributed.checkpoint, NCCL's options.
TESTS = (
    "tests/config",
    "tests/tensors",
    "tests/primitives",
    "tests/replica",
    "tests/network/test_in_process.py",
    "tests/network/test_signed_store.py",
    "tests/network/test_communicators.py",
    "tests/network/test_ends_of_waiting.py",
    "tests/engine/test_parity_ddp.py",
    "tests/engine/test_sharded_models.py",
    "tests/checkpoint/test_torch_checkpoints.py",
)
STEPS = {
    "bare": "without extras",
    "demo": "`relaxcomm demo`",
    "train": "`relaxcomm train`",
    "examples": "examples",
    "tests": "tests",
}


@dataclass(frozen=True)
class Cell:
    """One environment.

    Args:
        python: its version.
        torch: its version, as it names itself.
        steps: by name, whether each passed, how long it took, and what it said.
        packages: all that is installed, as `pip freeze` lists it.
        commit: that was tried.
        date: of the run.
    """

    python: str
    torch: str
    steps: dict[str, dict[str, Any]]
    packages: list[str] = field(default_factory=list)
    commit: str | None = None
    date: str = ""

    def failed(self) -> dict[str, dict[str, Any]]:
        """The steps that did not pass."""
        return {name: step for name, step in self.steps.items() if not step["passed"]}

    def row(self) -> str:
        """The cell's row of the table."""
        shown = [_shown(self.steps[name]) for name in STEPS]
        return f"| {' | '.join([self.python, self.torch, *shown, self.date[:10]])} |"


def try_out(python: str, torch: str, wheel: Path) -> Cell:
    """Install the wheel beside one version of torch, and use it."""
    with TemporaryDirectory(prefix="relaxcomm-wheel-") as made:
        folder = Path(made)
        programs = new_environment(
            folder / "environment", shutil.which(python) or python, f"torch=={torch}", wheel
        )
        work = folder / "work"
        work.mkdir()
        (work / "relaxcomm.yaml").write_text(CONFIGURATION)
        steps = {"bare": _bare(programs, work)}
        install(programs, f"{wheel}[demo]")
        steps["demo"] = _step(programs / "relaxcomm", "demo", cwd=work)
        trained = (programs / "python", "-m", "relaxcomm", "train", "relaxcomm.yaml")
        steps["train"] = _step(*trained, cwd=work)
        install(programs, *TEST_PACKAGES)
        for name, chosen in (("examples", EXAMPLES), ("tests", TESTS)):
            steps[name] = _step(*pytest_in(folder / name, programs), *chosen, cwd=folder / name)
        ask = "import platform, torch; print(platform.python_version(), torch.__version__)"
        _, versions = command(programs / "python", "-c", ask, cwd=work)
        _, packages = command(programs / "python", "-m", "pip", "freeze", cwd=work)
    return Cell(*versions.split(), steps, packages.splitlines())


def pytest_in(folder: Path, programs: Path) -> tuple[str | Path, ...]:
    """The command that tests there, where the tests and what they read are put, but not the package."""
    for name in ("tests", "benchmarks"):
        kept_out = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / name, folder / name, ignore=kept_out)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return (programs / "python", "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-m", "not slow")


def write(path: Path, machine: dict[str, Any], cells: Sequence[Cell]) -> None:
    """The result file, and the table beside it."""
    write_result(path, {"machine": machine, "results": [asdict(cell) for cell in cells]})
    path.with_suffix(".md").write_text(table(cells))


def table(cells: Sequence[Cell]) -> str:
    """All environments, a row each."""
    heads = ["Python", "PyTorch", *STEPS.values(), "date"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(cell.row() for cell in cells)]) + "\n"


def _bare(programs: Path, work: Path) -> dict[str, Any]:
    """Without the bundled tasks' packages: algorithms are there, and the demo says what to install."""
    listed = _step(programs / "python", "-m", "relaxcomm", "algorithms", cwd=work)
    refused, said = command(programs / "relaxcomm", "demo", cwd=work)
    names_it = refused != 0 and "pip install 'relaxcomm[demo]'" in said and "Traceback" not in said
    return listed if names_it or not listed["passed"] else {**listed, "passed": False, "said": said}


def _step(*words: str | Path, cwd: Path) -> dict[str, Any]:
    begun = time.monotonic()
    status, said = command(*words, cwd=cwd)
    kept = said.splitlines()[-40:]
    return {"passed": status == 0, "seconds": round(time.monotonic() - begun, 1), "said": "\n".join(kept)}


def _shown(step: dict[str, Any]) -> str:
    """How many tests passed where they are counted."""
    counts = re.findall(r"^(.*\b\d+ (?:passed|failed)\b.*) in [\d.]+s", step["said"], re.MULTILINE)
    counted = counts[-1] if counts else ""  # libraries may speak after it, as an interpreter ends
    return ("" if step["passed"] else "**failed** ") + (counted or ("passed" if step["passed"] else ""))
