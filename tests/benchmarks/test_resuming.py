"""A run of the lab that was ended goes on with what is missing."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from benchmarks.lab import standard
from benchmarks.lab.recording import begin
from benchmarks.lab.resuming import Before, check_same, read
from benchmarks.lab.tuning import Grid
from tests.benchmarks.test_lab import MadeUpCrew

LABELS = ["ddp", "periodic_averaging"]
GRID = Grid((0.1, 0.2), periods=(4, 8), seeds=(7,))


class Crew(MadeUpCrew):
    """Says where it ran."""

    network = "namespaces"

    def run(self, job, rate):
        place = {"workload": job.workload, "network": self.network, "seed": job.seed}
        return {**super().run(job, rate), **place}


def run(before: list[dict[str, Any]], seeds: int = 2, network: str = "namespaces") -> list[dict[str, Any]]:
    """What a run adds to a file."""
    added: list[dict[str, Any]] = []
    standard.run(
        Crew(),
        "digits",
        LABELS,
        [None],
        range(seeds),
        GRID,
        lambda kind, one: added.append({"kind": kind, "workers": 4, **one}),
        Before(before, "digits", 4, network),
    )
    return added


def finals(records):
    return [(one["label"], one["seed"]) for one in records if one["kind"] == "final"]


def test_what_is_there_is_not_run_again():
    whole = run([])
    assert len(finals(whole)) == 2 * (1 + len(LABELS))
    assert run(whole) == []


@pytest.mark.parametrize("missing", [1, 2, 4])
def test_only_the_missing_finals_are_run_with_the_settings_from_before(missing):
    whole = run([])
    tuned = [{**one, "learning_rate": 0.05} if one["kind"] == "tuned" else one for one in whole[:-missing]]
    added = run(tuned)
    assert finals(added) == finals(whole)[-missing:]
    assert {one["learning_rate"] for one in added if one["label"] != "nothing"} == {0.05}


def test_more_seeds_are_added():
    assert finals(run(run([]), seeds=3)) == [(label, 2) for label in ("nothing", "ddp", "periodic_averaging")]


def test_tuning_goes_on_too():
    """With one setting missing all is tuned again, but the other one stays as it was."""
    whole = run([])
    tuned = [one for one in whole if one["kind"] == "tuned"]
    kept = [one for one in whole if one["kind"] not in ("tuned", "final")] + tuned[:1]
    added = run(kept)
    assert [one["label"] for one in added if one["kind"] == "tuned"] == [tuned[1]["label"]]
    assert finals(added) == finals(whole)


def test_another_network_is_another_run():
    whole = run([])
    assert finals(run(whole, network="throttled")) == finals(whole)


ASKED = {"learning_rates": [0.1, 0.2], "periods": None, "steps": None, "tuning_seeds": 2, "seeds": 5}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"learning_rates": [0.1]}, r"--learning-rates \[0.1\], there \[0.1, 0.2\]"),
        ({"steps": 480}, "--steps"),
    ],
)
def test_a_run_that_was_tuned_otherwise_is_not_gone_on_with(tmp_path, changed, named):
    begin(tmp_path / "run.jsonl", Namespace(**ASKED))
    records = read(tmp_path / "run.jsonl")
    check_same(records, {**ASKED, "seeds": 8})
    with pytest.raises(ValueError, match=named):
        check_same(records, ASKED | changed)
