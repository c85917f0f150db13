"""Claims of papers: when a setting tells anything, what a table says, and that tables are their files'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.claims.catalogue import CLAIMS
from benchmarks.claims.claim import BSP, NEVER, Claim, at_least
from benchmarks.claims.settings import SETTINGS
from benchmarks.claims.table import markdown
from benchmarks.claims.training import Run, Trial, train
from benchmarks.claims.tried import Tried
from benchmarks.report import RESULTS
from relaxcomm.config.grammar import parse_algorithm


def tried(quality):
    return Tried(Trial(algorithm="bsp"), 0.1, {0.1: quality}, ({"quality": quality},))


@pytest.mark.parametrize(
    ("never", "row", "verdict"),
    [
        (0.2, 0.95, "holds"),
        (0.2, 0.8, "does not hold"),
        (0.94, 0.95, "cannot tell: never exchanging is as good"),
    ],
)
def test_a_setting_tells_something_only_where_never_exchanging_fails(never, row, verdict):
    claim = Claim(
        name="as_good",
        paper="",
        says="",
        settings=("digits",),
        rows={"row": Trial(algorithm="bsp")},
        holds=at_least("row", BSP),
    )
    outcome = {BSP: tried(0.95), NEVER: tried(never), "row": tried(row)}
    assert claim.verdict("digits", outcome) == verdict


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.name} {claim.settings[0]}")
def test_every_claim_can_be_tried(claim):
    assert {BSP, NEVER} < claim.trials().keys()
    for name in claim.settings:
        for trial in claim.trials().values():
            parse_algorithm(trial.algorithm)
            assert SETTINGS[name].rates[trial.kind(SETTINGS[name])]


def test_a_trial_is_trained_and_counted(monkeypatch):
    small = SETTINGS["digits by label"]
    monkeypatch.setitem(SETTINGS, "small", type(small)(**{**vars(small), "epochs": 1, "workers": 3}))
    never = Trial(algorithm={"name": "local_sgd", "steps": 10**9})
    often = Trial(algorithm={"name": "local_sgd", "steps": 4})
    alone, together = (train(Run("small", trial, 0.05, 0)) for trial in (never, often))
    assert alone["exchanges"] == 0 < together["exchanges"] == together["steps"] // 4
    assert alone["quality"] < together["quality"]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("claims-*.json")), ids=lambda path: path.stem)
def test_a_page_is_what_its_file_says(path: Path):
    assert path.with_suffix(".md").read_text() == markdown(json.loads(path.read_text()))
