"""The figures that are aimed at, on a table whose times are made up."""

from __future__ import annotations

import math

import pytest

from benchmarks.lab.aims import aims
from benchmarks.lab.quality import Reached
from benchmarks.lab.tables import Place, Row, Table


def row(label: str, seconds: float) -> Row:
    return Row(label, "", (Reached(1, seconds, 1),), 1.0, None, False, None)


def lines(workload: str, rate: str | None, limit: float, **seconds: float) -> list[str]:
    rows = tuple(row(label.replace("_", " "), time) for label, time in seconds.items())
    return [str(aim) for aim in aims(Table(Place(workload, 4, rate), limit, rows))]


def test_every_figure_is_told_with_its_bound():
    found = lines(
        "digits",
        "100mbit",
        0.5,
        ddp=16.0,
        torchft=1.1,
        relaxcomm_selsync=2.0,
        relaxcomm_local_sgd=1.0,
        relaxcomm_auto=1.05,
    )
    assert found == [
        "relaxcomm local sgd, of the limit: 2.00 (at most 1.5: missed)",
        "relaxcomm local sgd, times as fast as DDP: 16.00 (at least 30: missed)",
        "relaxcomm selsync, times as fast as DDP: 8.00 (at least 14: missed)",
        "relaxcomm local sgd, times as fast as torchft, the best rival: 1.10 (at least 1.2: missed)",
        "auto, of the best fixed choice: 1.05 (at most 1.1: reached)",
    ]


def test_where_no_bound_is_set_only_the_figure_is_told():
    assert lines("charlm", None, 1.0, ddp=3.0, relaxcomm_bsp=2.0) == [
        "relaxcomm bsp, of the limit: 2.00",
        "relaxcomm bsp, times as fast as DDP: 1.50 (at least 1: reached)",
    ]


@pytest.mark.parametrize("rivals", [{}, {"torchft": 2.0}])
def test_without_ddp_there_is_no_limit(rivals):
    found = lines("digits", "1gbit", math.nan, relaxcomm_bsp=2.0, **rivals)
    assert len(found) == len(rivals)


def test_without_ours_there_is_nothing_to_tell():
    assert lines("digits", "1gbit", 1.0, ddp=2.0) == []


def test_auto_may_be_the_best_of_ours_and_is_compared_with_the_others():
    assert lines("digits", "1gbit", 1.0, torchft=3.0, relaxcomm_local_sgd=2.0, relaxcomm_auto=1.5) == [
        "relaxcomm auto, of the limit: 1.50 (at most 1.25: missed)",
        "relaxcomm auto, times as fast as torchft, the best rival: 2.00 (at least 1.2: reached)",
        "auto, of the best fixed choice: 0.75 (at most 1.1: reached)",
    ]
