"""A pretended GPU finds accesses to the same memory that no wait orders."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from relaxcomm.network.device_times import DeviceTimes
from relaxcomm.network.mailbox import FOR_EVER
from relaxcomm.network.operations import Label
from relaxcomm.network.pending_works import StreamPending
from relaxcomm.network.streams import Streams
from relaxcomm.network.threaded_call import ThreadedCall
from relaxcomm.step.device_flags import DeviceFlags
from relaxcomm.tensors import host_copies
from tests.mutants import mutated
from tests.network.nccl_streams import OnStream
from tests.testing.side_streams import races_of, side_stream

GPU = torch.device("cuda", 0)


def another_stream_reads(gpu, waits):
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    if waits:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.sum()
    x.record_stream(side)


def it_writes_what_this_one_reads(gpu, waits):
    x, side = torch.ones(4, device="cuda"), side_stream()
    read = (x.sum(), torch.cuda.current_stream().record_event())
    with torch.cuda.stream(side):
        if waits:
            read[1].wait()
        x.zero_()
    x.record_stream(side)


def memory_is_given_back(gpu, is_recorded):
    x, side = torch.ones(4, device="cuda"), side_stream()
    with torch.cuda.stream(side):
        x.sum()
    if is_recorded:
        x.record_stream(side)
    del x
    torch.empty(4, device="cuda")


def the_host_reads(gpu, waits):
    copy = torch.ones(4, device="cuda").to("cpu", non_blocking=True)
    copied = torch.cuda.current_stream().record_event()
    if waits:
        copied.synchronize()
    copy.tolist()


def the_host_writes(gpu, waits):
    source = torch.ones(4).pin_memory()
    source.to("cuda", non_blocking=True)
    if waits:
        torch.cuda.synchronize()
    source.zero_()


def an_event_is_looked_at(gpu, twice):
    copy = torch.ones(4, device="cuda").to("cpu", non_blocking=True)
    copied = torch.cuda.current_stream().record_event()
    assert not copied.query()
    assert not twice or copied.query()
    copy.sum()


def a_kernel_of_ones_own_reads(gpu, waits):
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        if waits:
            side.wait_stream(torch.cuda.default_stream())
        gpu.launched("mine", [x], [])
    x.record_stream(side)


def a_backward_goes_on_two_streams(gpu, waits):
    a, b, x = nn.Linear(4, 4).to("cuda"), nn.Linear(4, 4).to("cuda"), torch.ones(4, 4, device="cuda")
    default, side = torch.cuda.current_stream(), side_stream()
    with torch.cuda.stream(side):
        y = b(x)
    z = a(x)
    default.wait_stream(side)
    met = []
    if not waits:  # where the last gradient comes on one, the first need not be there on the other
        b.weight.register_post_accumulate_grad_hook(lambda p: met.append(p.grad + a.weight.grad))
    (y + z).sum().backward()
    met.append(a.weight.grad + b.weight.grad)


@pytest.mark.parametrize(
    "action",
    [
        another_stream_reads,
        it_writes_what_this_one_reads,
        memory_is_given_back,
        the_host_reads,
        the_host_writes,
        an_event_is_looked_at,
        a_kernel_of_ones_own_reads,
        a_backward_goes_on_two_streams,
    ],
)
def test_a_race_is_found_and_none_where_somebody_waits(action):
    assert len(races_of(action, False)) == 1
    assert races_of(action, True) == []


def test_parts_of_one_buffer_do_not_meet():
    def halves(gpu):
        buffer, side = torch.zeros(8, device="cuda"), side_stream()
        with torch.cuda.stream(side):
            buffer[:4].add_(1)
        buffer[4:].add_(1)
        assert gpu.races == []
        buffer[3:5].sum()
        buffer.record_stream(side)

    (race,) = races_of(halves)
    assert "sum at testing/test_races.py:" in race
    assert "add_ at testing/test_races.py:" in race


def test_threads_know_what_those_know_that_start_them_and_no_more():
    def reads_in_a_thread(gpu, waits):
        copy = torch.ones(4, device="cuda").to("cpu", non_blocking=True)
        if waits:
            torch.cuda.synchronize()
        ThreadedCall(copy.sum).wait(FOR_EVER)

    assert len(races_of(reads_in_a_thread, False)) == 1
    assert races_of(reads_in_a_thread, True) == []


def staged(gpu):
    x = torch.ones(4, device="cuda")
    copy, copied = Streams(GPU).to_host(x)
    del x
    torch.empty(4, device="cuda")
    while not copied():
        pass
    copy.sum()


def flagged(gpu):
    flags = DeviceFlags(None, None)
    flags.add(torch.ones((), dtype=torch.bool, device="cuda"), step=3)
    flags.raise_if_bad()


def kept(gpu):
    ones = host_copies.kept_per_stream(8)(lambda device: torch.ones(4, device=device))
    ones(GPU)
    with torch.cuda.stream(torch.cuda.Stream()):
        ones(GPU).sum()


def landed(gpu):
    result, nccl = torch.empty(4, device="cuda"), side_stream()
    with torch.cuda.stream(nccl):
        gpu.launched("NCCL's allreduce", [], [result])
    work = OnStream(
        SimpleNamespace(wait=lambda: None, is_completed=lambda: True), nccl.record_event(), [result]
    )
    monitor = SimpleNamespace(check=lambda: None, watch=lambda one: None)
    pending = StreamPending(monitor, Streams(GPU), DeviceTimes(), None, [work], result, Label(0, "rule"), 0)
    pending.wait().sum()


NETWORK = "relaxcomm.network."
TO_HOST, FLAGS = NETWORK + "streams:Streams.to_host", "relaxcomm.step.device_flags:DeviceFlags."


@pytest.mark.parametrize(
    ("action", "mutant"),
    [
        (staged, (TO_HOST, "self._side.wait_stream(torch.cuda.current_stream(self._device))", "pass")),
        (staged, (TO_HOST, "tensor.record_stream(self._side)", "pass")),
        (staged, (TO_HOST, "bool(event.query())", "True")),
        (staged, (TO_HOST, "self._side.record_event()", "torch.cuda.current_stream().record_event()")),
        (flagged, (FLAGS + "raise_if_bad", "flag.copied.synchronize()", "pass")),
        (
            flagged,
            (FLAGS + "add", "torch.cuda.current_stream(good.device).record_event()", "torch.cuda.Event()"),
        ),
        (kept, ("relaxcomm.tensors.host_copies:kept_per_stream", "torch.cuda.current_stream(device)", "0")),
        (landed, (NETWORK + "pending_works:StreamPending.wait", "work.wait()", "pass")),
    ],
)
def test_a_wait_that_the_package_leaves_out_is_a_race(action, mutant):
    assert races_of(action) == []
    with mutated(*mutant):
        assert races_of(action)
