"""What the benchmark of the frameworks' examples says of its runs."""

import json
from pathlib import Path

from benchmarks.frameworks.__main__ import summary
from benchmarks.frameworks.launching import RANKS_A_HOST
from benchmarks.frameworks.matrix import EXAMPLES, Cell, table
from benchmarks.report import RESULTS


def test_rounds_are_compared_in_pairs():
    seconds = {"before": (8.0, 12.0, 10.0), "bsp": (8.0, 6.0, 10.0), "auto": (1.0, 2.0, 4.0)}
    runs = [
        {"example": "one", "contender": contender, "seconds": taken[place], "loss": 0.5}
        for place in range(3)
        for contender, taken in seconds.items()
    ]
    before, bsp, auto = summary(runs)
    assert (before["seconds"], before["times_as_fast"]) == (10.0, 1.0)
    assert (bsp["times_as_fast"], bsp["spread"]) == (1.0, [1.0, 2.0])
    assert (auto["times_as_fast"], auto["losses"]) == (6.0, [0.5])


def test_every_example_is_there():
    assert all((EXAMPLES / name / "after.py").is_file() for name in RANKS_A_HOST)


def test_the_readme_says_what_the_newest_matrix_has():
    newest = max(RESULTS.glob("frameworks-matrix-*.json"))
    cells = [Cell(**found) for found in json.loads(newest.read_text())["results"]]
    readme = Path(__file__).parents[2].joinpath("README.md").read_text()
    header, line, *rows = table(cells).splitlines()
    families = ["|".join(row.split("|")[:4]) for row in (header, line, *rows)]
    assert "|\n".join(families) in readme
    assert "All but the last two, which choose the batches themselves, train in the examples of six" in readme
    assert [row.count(" ✓ |") for row in rows] == [6] * (len(rows) - 2) + [0] * 2
    assert f"(benchmarks/results/{newest.stem}.md)" in readme
    assert not any(cell.is_wrong for cell in cells)
