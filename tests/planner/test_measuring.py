"""What coding costs on the device that tensors lie on, and where nothing is measured."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.cli.plan_options import speeds_of
from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.planner import measuring
from relaxcomm.planner.measuring import measure_coders
from relaxcomm.primitives import exchange_for, quantize
from relaxcomm.testing import PretendGpu
from relaxcomm_algorithms.bsp import bsp

CODER = quantize(bits=8)
PAIRS = [(exchange_for(CODER), CODER)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_coding_is_timed_on_its_device(device, monkeypatch):
    monkeypatch.setattr(measuring, "_LARGE", 1 << 14)
    with PretendGpu() as gpu:
        speeds = measure_coders(PAIRS, 4, torch.device(device))
    assert (gpu.work.launches > 0) == (device == "cuda")
    assert 0 < speeds.coding_base_seconds < 1
    assert 0 <= speeds.coding_entry_seconds < 1e-3


def test_the_stream_of_its_own_gpu_is_timed(monkeypatch):
    """Which need not be the process's current GPU."""
    asked, device = [], torch.device("cuda:0")

    def streams(device=None):
        asked.append(device)
        return current(device)

    with PretendGpu():
        current = torch.cuda.current_stream
        monkeypatch.setattr(torch.cuda, "current_stream", streams)
        assert measuring._stopwatch(device)() > 0
    assert asked == [device, device]


def test_slow_coding_costs_more(monkeypatch):
    taken = {1 << 10: 0.25, 1 << 20: 0.5}
    monkeypatch.setattr(measuring, "_seconds", lambda coder, decoded, numel, device: taken[numel])
    speeds = measure_coders(PAIRS, 4, torch.device("cpu"))
    assert speeds.coding_base_seconds == 0.25
    assert speeds.coding_entry_seconds == 0.25 / ((1 << 20) - (1 << 10))


def test_where_a_gpu_has_no_memory_left_its_usual_speeds_count(monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(measuring, "_seconds", full)
    assert measure_coders(PAIRS, 4, torch.device("cuda")) == Speeds.usual("cuda")
    assert Speeds.usual("cuda").coding_base_seconds < Speeds.usual("cpu").coding_base_seconds


@pytest.mark.parametrize(("backend", "device"), [("nccl", "cuda"), ("gloo", "cpu"), ("auto", "cpu")])
def test_a_plan_takes_the_usual_speeds_of_what_its_backend_runs_on(backend, device):
    found = speeds_of(bsp(), 4, measure=False, coding=None, backend=backend)
    assert found == Speeds.usual(device)
