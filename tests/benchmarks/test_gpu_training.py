"""The benchmarks of steps and of a language model on a GPU run on the CPU, over Gloo, as well."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import language_model, steps
from benchmarks.gpu.language_trial import Trial, batches_of, train
from benchmarks.gpu.step_sides import Shape
from benchmarks.report import why
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks
CPU = torch.device("cpu")
SHAPE = Shape(width=16, layers=1, context=8, batch=2)
TRIAL = Trial(width=16, layers=1, context=16, batch=2, steps=8, period=4, learning_rate=1e-3)


def turns(rank: int, names):
    return steps.take_turns(rank, CPU, names, SHAPE, 3, 0.01, 1 << 20)


@pytest.mark.parametrize("names", [steps.AGAINST_DDP, steps.AGAINST_NOTHING])
def test_sides_take_turns_in_the_same_training(names):
    num_ranks = 2 if names == steps.AGAINST_DDP else 1
    record = steps.compare(names, run_ranks(turns, num_ranks, names)[0])
    assert record["same_training"]
    assert all(len(blocks) == 3 for blocks in record["seconds"].values())
    assert 0 < record["host_share"] < 1
    said = steps.told("label", names, record)
    assert f"{names[1]} / {names[0]} {record['ratio']}" in said
    assert "NOT THE SAME TRAINING" in steps.told("label", names, {**record, "same_training": False})


def trained(rank: int, name: str, settings, seconds: float):
    return train(rank, CPU, name, settings, TRIAL, seconds)


@pytest.mark.parametrize("name", ["ddp", "diloco"])
def test_a_contender_learns_and_its_bytes_are_counted(name):
    first, second = run_ranks(trained, 2, name, language_model.contenders(4)[name], 60.0)
    assert [point["tokens"] for point in first["curve"]] == [4 * 2 * 16 * 2, 8 * 2 * 16 * 2]
    assert first["steps"] == 8
    assert first["curve"][-1]["bits_per_character"] < first["curve"][0]["bits_per_character"] < 7.5
    if name == "ddp":  # its gradients go over the wire in each step
        assert first["bytes_a_step"] > 4 * first["parameters"]
        assert first["curve"][-1]["bits_per_character"] == second["curve"][-1]["bits_per_character"]
    assert language_model.row(name, first).startswith(name)


def test_a_comparison_that_hangs_leaves_the_others_their_time(tmp_path, monkeypatch):
    limits = []

    def hangs(device, num_ranks, limit_seconds, *_):
        limits.append(limit_seconds)
        raise TimeoutError("it hangs")

    monkeypatch.setattr(steps, "run_on", hangs)
    monkeypatch.setattr(
        sys, "argv", ["steps", "--limit-seconds", "400", "--output", str(tmp_path / "one.json")]
    )
    steps.main()
    assert limits == pytest.approx([100, 400 / 3, 200, 400], rel=0.05)  # they did not take theirs


def test_one_that_takes_too_long_stops_where_it_is_judged():
    first, _ = run_ranks(trained, 2, "ddp", {}, 0.0)
    assert first["steps"] == 4
    assert len(first["curve"]) == 1


def test_ranks_read_all_of_the_text_once():
    task = dataclasses.replace(TRIAL, steps=3).task(2)
    read = [
        row
        for rank in range(2)
        for batch in batches_of(task, dataclasses.replace(TRIAL, steps=3), rank, 2, CPU)
        for row in batch
    ]
    assert len(read) == len(task.train_data) == 12
    whole = torch.stack([task.train_data[i] for i in range(12)])
    assert sorted(row.tolist() for row in read) == sorted(row.tolist() for row in whole)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("Traceback\n  File x\nValueError: it is full\n"), "ValueError: it is full"),
        (AssertionError(), "AssertionError:"),
    ],
)
def test_one_that_fails_says_why_in_a_line(error, line):
    assert language_model.row("ddp", {"failed": why(error)}).endswith(f"failed: {line}")


def test_what_the_profiler_cannot_tell_leaves_the_times(monkeypatch):
    def fails(*_):
        raise ValueError("the profiler has seen no call")

    monkeypatch.setattr(steps, "profiled_waits", fails)
    found = steps.waits_of(SimpleNamespace(step=None))
    assert found == {"waits": None, "not_profiled": "ValueError: the profiler has seen no call"}
