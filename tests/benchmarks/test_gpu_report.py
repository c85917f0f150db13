"""The one command for a machine with a GPU, as far as a machine without one can tell."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from benchmarks.gpu import __main__ as command, speed
from benchmarks.gpu.aims import LARGE, aims
from benchmarks.gpu.proofs import ROOT
from benchmarks.gpu.speed import measure
from relaxcomm.primitives import quantize


def test_every_contender_is_timed_in_every_round():
    rows = measure(torch.device("cpu"), 4096, 2)
    assert len(rows) == 6
    assert all(len(row["milliseconds"]) == 2 and min(row["milliseconds"]) > 0 for row in rows)


def test_what_each_worker_has_sent_is_read_from_memory(monkeypatch):
    found = []
    monkeypatch.setattr(quantize, "decoded", lambda _, parts, like, *more: found.extend(parts) or like)
    speed._decoding(quantize(bits=8), torch.ones(64))()
    assert len({message.codes.data_ptr() for _, message in found}) == len(found) == speed.WORKERS


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
