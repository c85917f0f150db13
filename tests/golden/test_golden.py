"""Every bundled algorithm goes where it went when it was recorded, up to rounding on another machine."""

from __future__ import annotations

import pytest

from relaxcomm.config import registry
from tests.golden.cases import CASES
from tests.golden.recorded import ALL, check_counts, distance, load
from tests.golden.trajectories import trajectory

RECORDED = load()
MEASURED = {"auto"}  # goes by the clock


def test_every_bundled_algorithm_is_recorded():
    bundled = {name for name, entry in registry.algorithms().items() if entry.origin == "relaxcomm"}
    assert {name.split()[0] for name in CASES} - {"rules"} == bundled - MEASURED
    assert set(RECORDED) == {"texts", *(f"{name}/{loop}" for name, loop in ALL)}


def in_turn():
    """Of the loops that a case has been recorded in, one; the others are slow."""
    for number, name in enumerate(CASES):
        loops = [loop for one, loop in ALL if one == name]
        for loop in loops:
            is_quick = loop == loops[number % len(loops)]
            yield pytest.param(name, loop, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "loop"), [*in_turn()])
def test_it_goes_where_it_went(name, loop):
    now = trajectory(name, loop)
    check_counts(RECORDED, f"{name}/{loop}", now)
    assert distance(RECORDED[f"{name}/{loop}"], now) < 1e-9
