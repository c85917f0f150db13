"""A wait of the host orders what came before it on a pretended GPU, and no more."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from relaxcomm.testing import PretendGpu
from tests.testing.side_streams import races_of, side_stream


def on_a_side_stream(run):
    """An action whose result is read on another stream, which may wait."""

    def action(gpu, waits):
        x, side = torch.ones(4, device="cuda"), side_stream()
        with torch.cuda.stream(side):
            y = run(x)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        (x if y is None else y).sum()
        x.record_stream(side)

    return action


def to_host(*args, **words):
    def action(gpu, waits):
        copy, stream = torch.ones(4, device="cuda").to(*args, **words), torch.cuda.current_stream()
        assert not stream.query()
        assert not waits or stream.query()
        copy.sum()

    return action


def from_pinned(move):
    def action(gpu, waits):
        source = torch.ones(4).pin_memory()
        _ = move(source)
        if waits:
            torch.cuda.synchronize()
        source.zero_()

    return action


def a_thread_waits(gpu, is_joined):
    copy = torch.ones(4, device="cuda").to("cpu", non_blocking=True)
    thread, waited = (
        threading.Thread(target=lambda: (torch.cuda.synchronize(), waited.set())),
        threading.Event(),
    )
    thread.start()
    thread.join() if is_joined else waited.wait()
    copy.sum()


@pytest.mark.parametrize(
    "action",
    [
        on_a_side_stream(lambda x: x[x > 0]),
        on_a_side_stream(lambda x: x[torch.tensor([1, 2])]),
        on_a_side_stream(lambda x: x.nonzero()),
        on_a_side_stream(lambda x: x.index_put_((torch.arange(2, device="cuda"),), torch.tensor(1.0))),
        on_a_side_stream(lambda x: x.index_put_((x > 0,), torch.tensor(1.0))),
        on_a_side_stream(lambda x: torch.ones(4).to("cuda", non_blocking=True)),
        on_a_side_stream(lambda x: x.copy_(torch.ones(4), non_blocking=True)),
        to_host("cpu", torch.float64, True),
        to_host(device="cpu", non_blocking=True),
        from_pinned(lambda x: x.cuda(None, True)),
        from_pinned(lambda x: nn.ParameterList([nn.Parameter(x)]).to("cuda", non_blocking=True)),
        a_thread_waits,
    ],
)
def test_a_race_is_found_until_the_right_one_waits(action):
    assert len(races_of(action, False)) == 1
    assert races_of(action, True) == []


def test_what_is_staged_may_be_written_again():
    def written(gpu):
        source = torch.ones(4)
        kept = source.to("cuda", non_blocking=True), torch.empty(4, device="cuda")
        kept[1].copy_(source, non_blocking=True)
        source.zero_()

    assert races_of(written) == []


@pytest.mark.parametrize("checks", [False, True])
def test_a_thread_counts_once(checks):
    def add():
        with gpu.in_thread():
            x.add(1)

    with PretendGpu(check_streams=checks) as gpu:
        x = torch.ones(4, device="cuda")
        gpu.work.clear()
        thread = threading.Thread(target=add)
        thread.start()
        thread.join()
        assert gpu.work.launches == 1
        add()
        assert gpu.work.launches == 2
