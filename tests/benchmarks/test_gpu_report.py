"""The one command for a machine with a GPU, as far as a machine without one can tell."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from benchmarks.gpu.proofs import outcomes, prove
from benchmarks.gpu.speed import measure


def test_every_contender_is_timed_in_every_round():
    rows = measure(torch.device("cpu"), 4096, 2)
    assert len(rows) == 6
    assert all(len(row["milliseconds"]) == 2 and min(row["milliseconds"]) > 0 for row in rows)


def test_outcomes_are_told_apart():
    cases = (
        '<testcase classname="a" name="x" time="1"/>',
        '<testcase classname="a" name="y" time="2"><failure message="went wrong"/></testcase>',
        '<testcase classname="a" name="z" time="0"><skipped message="needs a CUDA device"/></testcase>',
    )
    found = outcomes(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    assert [one["outcome"] for one in found] == ["proven", "failed", "skipped"]
    assert found[1]["why"] == "went wrong"


def test_tests_are_run_and_told_of():
    found = prove(["tests/benchmarks/test_gpu_report.py::test_outcomes_are_told_apart"], 60)
    assert [(one["test"].split("::")[1], one["outcome"]) for one in found] == [
        ("test_outcomes_are_told_apart", "proven")
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "no GPU is seen" in done.stderr
