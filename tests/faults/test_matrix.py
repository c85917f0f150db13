"""Every fault meets every family of algorithms; what happened is kept under benchmarks/results."""

from __future__ import annotations

import os

import pytest

from benchmarks.faults.cells import Cell, all_cells
from benchmarks.faults.matrix import Matrix, write
from benchmarks.faults.verdicts import Verdict
from benchmarks.report import dated

pytestmark = [pytest.mark.ranks, pytest.mark.faults, pytest.mark.timeout(3_000)]
CELLS = {cell.name: cell for cell in all_cells()}


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> dict[Cell, Verdict]:
    """Of the chosen cells, which run several at a time; a whole matrix is kept."""
    chosen = [
        CELLS[item.callspec.params["name"]]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_a_fault_does_what_is_expected
    ]
    if os.geteuid() != 0:
        chosen = [cell for cell in chosen if cell.fault.needs == "nothing"]
    found = Matrix().run(chosen)
    if len(found) == len(CELLS):
        write(dated("fault-matrix"), found)
    return found


@pytest.mark.parametrize("name", CELLS)
def test_a_fault_does_what_is_expected(name: str, verdicts: dict[Cell, Verdict]):
    cell = CELLS[name]
    if cell not in verdicts:
        pytest.skip("hosts and file systems are made by root")
    assert not verdicts[cell].wrong, verdicts[cell]
