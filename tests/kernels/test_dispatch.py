"""Which implementation runs, and that Triton is asked for by those alone who use it."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from relaxcomm.errors import UsageError
from relaxcomm.kernels import dispatch
from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.kernels.dispatch import implementation, is_for_kernels, uses_numba, uses_triton
from relaxcomm.kernels.level_packing import pack_nonnegative
from relaxcomm.tensors.segments import Segments
from tests.kernels import interpreter
from tests.kernels.host_kernels import needs_numba
from tests.kernels.interpreter import DEVICE, HAS_GPU


def test_what_is_on_the_cpu_is_coded_as_ever():
    assert not is_for_kernels(torch.zeros(3))
    assert not uses_triton(torch.zeros(3))


def test_an_implementation_may_be_chosen_for_a_while(kernels):
    for name in ("triton", "torch"):
        with implementation(name):
            assert is_for_kernels(torch.zeros(3))
            assert uses_triton(torch.zeros(3)) == (name == "triton")
    assert not is_for_kernels(torch.zeros(3))


def test_types_that_kernels_do_not_read_and_empty_tensors_are_coded_as_ever():
    with implementation("torch"):
        assert not is_for_kernels(torch.zeros(3, dtype=torch.float64))
        assert not is_for_kernels(torch.zeros(0))


def test_a_tensor_that_only_says_that_it_is_on_a_gpu_has_no_driver(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda", 0))
    x = torch.ones(9)
    assert is_for_kernels(x)
    assert not uses_triton(x)
    monkeypatch.undo()
    assert pack_nonnegative(x, Segments(len(x), len(x))).numel() == 2


def test_tests_say_why_no_kernel_can_run(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "Triton is not installed" in str(interpreter.why_not())


def test_without_triton_it_cannot_be_asked_for(monkeypatch):
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    with pytest.raises(UsageError, match="pip install triton"), implementation("triton"):
        pass


@pytest.mark.skipif(HAS_GPU, reason="there the compiler runs")
def test_without_a_gpu_triton_needs_its_interpreter(monkeypatch):
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UsageError, match="TRITON_INTERPRET=1"), implementation("triton"):
        pass


@needs_numba
def test_numba_is_for_large_tensors_of_few_threads(monkeypatch):
    large = torch.zeros(1 << 16)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert uses_numba(large)
    assert not uses_numba(large[1:])
    assert not uses_numba(large.bfloat16())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert not uses_numba(large)
    with implementation("numba"):
        assert uses_numba(large[:1])
        assert not is_for_kernels(large)


def test_without_numba_it_cannot_be_asked_for(monkeypatch):
    monkeypatch.setattr(dispatch, "has_numba", lambda: False)
    assert not uses_numba(torch.zeros(1 << 16))
    with pytest.raises(UsageError, match=r"pip install 'relaxcomm\[numba\]'"), implementation("numba"):
        pass


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_where_torch_may_round_otherwise_numba_does_not_run(machine, monkeypatch):
    monkeypatch.setattr(dispatch.platform, "machine", lambda: machine)
    assert not dispatch.has_numba.__wrapped__()


def test_numbers_are_sent_to_a_device_once():
    one = device_numbers((1.0, 2.0), torch.float32, DEVICE)
    assert one is device_numbers((1.0, 2.0), torch.float32, DEVICE)
    assert one is not device_numbers((1.0, 2.0), torch.float64, DEVICE)
    assert one.tolist() == [1.0, 2.0]
