"""The table of what the wheel was tried with."""

import json
import sys
from pathlib import Path

from benchmarks.report import RESULTS
from tests.wheel.building import ROOT, command
from tests.wheel.cells import STEPS, Cell, pytest_in, table


def test_the_page_links_the_newest_table():
    newest = max(RESULTS.glob("wheel-*.json"))
    cells = [Cell(**found) for found in json.loads(newest.read_text())["results"]]
    assert newest.with_suffix(".md").read_text() == table(cells)
    assert f"(../benchmarks/results/{newest.stem}.md)" in ROOT.joinpath("docs/installing.md").read_text()


def test_a_step_that_failed_is_seen():
    passed = {"passed": True, "seconds": 1.0, "said": "3 passed, 1 skipped in 0.5s"}
    failed = {"passed": False, "seconds": 1.0, "said": "1 failed, 2 passed in 0.5s (0:01:00)\n2 leaks"}
    cell = Cell("3.12.1", "2.8.0", {**dict.fromkeys(STEPS, passed), "tests": failed})
    assert list(cell.failed()) == ["tests"]
    assert "| 3 passed, 1 skipped | **failed** 1 failed, 2 passed |" in table([cell])


def test_a_command_that_takes_too_long_ends(tmp_path: Path):
    status, said = command("sh", "-c", "echo begun; exec sleep 60", cwd=tmp_path, seconds=0.3)
    assert (status, said) == (124, "begun\n\nit took more than 0.3 s")


def test_the_tests_are_found_without_the_repository(tmp_path: Path):
    words = pytest_in(tmp_path / "tests", Path(sys.executable).parent)
    status, said = command(*words, "--collect-only", "tests/tensors", cwd=tmp_path / "tests")
    assert status == 0, said
