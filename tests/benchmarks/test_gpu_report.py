"""The one command for a machine with a GPU, as far as a machine without one can tell."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as command, proofs, speed
from benchmarks.gpu.aims import LARGE, aims
from benchmarks.gpu.proofs import ROOT, prove
from benchmarks.gpu.speed import measure

TESTS = """
import os, signal, time
import pytest

def test_holds(): pass

def test_does_not(): assert 1 == 2, "numbers"

def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as in a library that does not return
    time.sleep(60)

def test_crashes(): os._exit(7)

def test_loses_the_device(): raise RuntimeError("CUDA error: an illegal memory access was encountered")

@pytest.mark.skip("for a reason")
def test_is_skipped(): pass

def test_is_last(): pass
"""


def test_every_contender_is_timed_in_every_round():
    rows = measure(torch.device("cpu"), 4096, 2)
    assert len(rows) == 6
    assert all(len(row["milliseconds"]) == 2 and min(row["milliseconds"]) > 0 for row in rows)


class Profile:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def events(self):
        raise RuntimeError("no kernels here")


def test_a_gpus_time_is_that_of_its_kernels(monkeypatch):
    class Event:
        def __init__(self, name, time, kind=torch.autograd.DeviceType.CUDA):
            self.name, self.self_device_time_total, self.device_type = name, time, kind

    class Seen(Profile):
        def events(self):
            host = Event("aten::add", 7.0, torch.autograd.DeviceType.CPU)
            return [Event("_list", 10.0), Event("_sum", 500.0), host, Event("_sum", 1000.0)]

    runs = []
    monkeypatch.setattr(speed, "profile", lambda **_: Seen())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: runs.append("waited"))
    found = speed._on_device(lambda: runs.append("run"), torch.device("cuda", 0))
    assert runs == ["run"] * 5 + ["waited"]
    assert list(found["kernels"].items()) == [("_sum", 0.3), ("_list", 0.002)]
    assert found["device_milliseconds"] == pytest.approx(0.302)


def test_what_the_profiler_cannot_tell_leaves_the_times(monkeypatch):
    monkeypatch.setattr(speed, "profile", lambda **_: Profile())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    found = speed._on_device(lambda: None, torch.device("cuda", 0))
    assert found == {"not_profiled": "RuntimeError: no kernels here"}


def test_what_cannot_be_made_says_why(monkeypatch):
    monkeypatch.setattr(speed, "quantize", lambda bits: bits / 0)
    *others, one, both, copy = measure(torch.device("cpu"), 64, 2)
    assert one["failed"] == both["failed"] == "ZeroDivisionError: division by zero"
    assert all("median_milliseconds" in row for row in (*others, copy))


def test_what_cannot_be_measured_says_why(monkeypatch):
    def fails(*_, **__):
        raise MemoryError("all is full")

    monkeypatch.setattr(torch, "topk", fails)
    first, *others = measure(torch.device("cpu"), 64, 1)
    assert first == {"what": "topk", "numel": 64, "failed": "MemoryError: all is full"}
    assert all("median_milliseconds" in row for row in others if "top_k" not in row["what"])


def test_aims_are_held_or_missed():
    times = {"a copy": 2.0, "quantize, encode": 3.5, "quantize, encode and decode": 6.5}
    rows = [{"what": what, "numel": LARGE, "median_milliseconds": time} for what, time in times.items()]
    encode, decode = aims(rows)
    assert encode["found"] == pytest.approx(LARGE * 5 / 1.5e-3 / 1e12, abs=1e-4)
    assert encode["holds"]
    assert (decode["found"], decode["holds"]) == (3.0, False)


@pytest.mark.slow
def test_one_that_hangs_or_crashes_does_not_take_others_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(proofs, "_GRACE_SECONDS", 0.5)
    path, broken = tmp_path / "test_made.py", tmp_path / "test_broken.py"
    path.write_text(TESTS)
    broken.write_text("import nothing_of_that_name")
    found = list(prove([str(broken), str(path)], 60, 1))
    told = {Path(one["test"].split("::")[-1]).name: (one["outcome"], one["why"]) for one in found}
    assert len(told) == len(found)
    assert {name: outcome for name, (outcome, _) in told.items()} == {
        "test_broken.py": "failed",
        "test_holds": "proven",
        "test_does_not": "failed",
        "test_hangs": "failed",
        "test_crashes": "failed",
        "test_loses_the_device": "failed",
        "test_is_skipped": "skipped",
        "test_is_last": "proven",
    }
    assert "numbers" in told["test_does_not"][1]
    assert "took too long" in told["test_hangs"][1]
    assert "ended the process with 7" in told["test_crashes"][1]
    assert "an illegal memory access" in told["test_loses_the_device"][1]
    assert "nothing_of_that_name" in told["test_broken.py"][1]
    assert "for a reason" in told["test_is_skipped"][1]


@pytest.mark.slow
def test_what_was_not_reached_is_told(tmp_path):
    path, later = tmp_path / "test_made.py", tmp_path / "test_later.py"
    path.write_text("import time\ndef test_first(): time.sleep(60)\ndef test_second(): pass\n")
    later.write_text("def test_third(): pass\n")
    found = list(prove([str(path), str(later)], 5, 30))
    assert {one["outcome"] for one in found} == {"not reached"}
    names = [one["test"].split("::")[-1] for one in found]
    assert names == ["test_first", "test_second", str(later)]  # of which nobody has seen inside
    assert list(prove([str(path)], 0, 30)) == [{"test": str(path), "outcome": "not reached"}]


def test_files_run_side_by_side(tmp_path):
    meeting = "import pathlib, time\ndef test_meets():\n    here = pathlib.Path(__file__)\n"
    meeting += "    here.with_suffix('.here').touch()\n    end = time.monotonic() + 20\n"
    meeting += "    while len(list(here.parent.glob('*.here'))) < 2: assert time.monotonic() < end\n"
    for name in ("test_one.py", "test_other.py"):
        (tmp_path / name).write_text(meeting)
    found = list(prove([str(tmp_path)], 60, 30, at_once=2))
    assert [one["outcome"] for one in found] == ["proven"] * 2, found
    assert {Path(one["test"].split("::")[0]).name for one in found} == {"test_one.py", "test_other.py"}


def test_a_file_that_cannot_be_tried_leaves_the_others(tmp_path, monkeypatch):
    path, start = tmp_path / "test_made.py", proofs._Proofs._start
    path.write_text("def test_holds(): pass\n")

    def starts(one):
        if one._tests != str(path):
            raise OSError("too many processes")
        return start(one)

    monkeypatch.setattr(proofs._Proofs, "_start", starts)
    first, second = prove(["tests/other.py", str(path)], 60, 30)
    assert (first["test"], first["why"]) == ("tests/other.py", "OSError: too many processes")
    assert (first["outcome"], second["outcome"]) == ("failed", "proven")


def test_who_listens_no_more_ends_all(tmp_path):
    path = tmp_path / "test_made.py"
    path.write_text("import time\ndef test_first(): pass\ndef test_second(): time.sleep(60)\n")
    begin = time.monotonic()
    for one in prove([str(path)], 60, 50):
        assert one["outcome"] == "proven"
        break
    assert time.monotonic() - begin < 30


def test_the_whole_command(tmp_path, monkeypatch, capsys):
    path = tmp_path / "test_made.py"
    path.write_text("def test_holds(): pass\ndef test_does_not(): assert 1 == 2, 'numbers'\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command, "device", lambda: {"name": "pretended"})
    monkeypatch.setattr(command, "TESTS", [str(path)])
    monkeypatch.setattr(command, "SIZES", [-1, 256])  # the first cannot be had
    monkeypatch.setattr(command, "measure", lambda _, *more: measure(torch.device("cpu"), *more))
    monkeypatch.setattr(sys, "argv", ["gpu", "--output", str(tmp_path / "gpu.json"), "--rounds", "1"])
    assert command.main() == 1
    said = capsys.readouterr().out
    assert "numbers" in said
    assert said.splitlines()[-1] == "1 proven, 1 failed"
    result = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert [one["outcome"] for one in result["proofs"]] == ["proven", "failed"]
    assert "failed" in result["speed"][0]
    assert len(result["speed"]) == 7


def test_what_it_tries_is_there():
    assert all((ROOT / one).exists() for one in command.TESTS)
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/gpu/test_*.py")}
    assert files == {one for one in command.TESTS if one != "tests/kernels"}


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert command.main() == 2
    assert "no GPU is seen" in capsys.readouterr().err
