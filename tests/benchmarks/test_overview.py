"""The table of all result files."""

from __future__ import annotations

import pytest

from benchmarks.lab.overview import overview
from benchmarks.lab.report import markdown, remarks
from benchmarks.lab.tables import read, tables
from benchmarks.report import RESULTS


def test_it_is_as_new_as_the_files():
    made = "run python -m benchmarks.lab.overview"
    assert (RESULTS / "README.md").read_text() == overview(RESULTS), made


def test_a_line_links_its_report_and_marks_what_is_reached():
    lines = [
        line for line in overview(RESULTS).splitlines() if "lab-charlm-2-workers-20261122-1140.md" in line
    ]
    slow, fast = (line.split(" | ") for line in lines)
    assert slow[0] == "| charlm, 2 workers, 100mbit"
    assert slow[2:6] == ["5", "local_sgd, 8 bits, late", "4.02", "**1.3**"]
    assert fast[5] == "**1.16**"
    assert fast[8] == "*1.08* (periodic_averaging)"


FILES = sorted(path for path in RESULTS.glob("lab-*.jsonl") if "scaling" not in path.name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_report_says_what_its_file_says(path):
    made = f"run python -m benchmarks.lab.report {path}"
    records = read(path)
    assert path.with_suffix(".md").read_text() == markdown(tables(records), remarks(records)), made
