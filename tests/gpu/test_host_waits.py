"""The host does not wait for the GPU in a step: torch.profiler shows it; elsewhere, a pretended GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

import relaxcomm
from benchmarks.gpu.host_waits import profiled_waits, waits_in
from tests.golden.cases import CASES, TOPOLOGIES, WITH_ADAM, WITHOUT_MOMENTUM
from tests.gpu.places import Place, costly, run

pytestmark = pytest.mark.ranks
RANKS, FIRST, STEPS = 3, 5, 11
CHEAP = ("bsp", "local_sgd", "gaussiank_sgd")
NAMES = (
    *("bsp", "local_sgd", "gaussiank_sgd", "diloco", "streaming_diloco", "topk_sgd", "dgc", "powersgd"),
    *("d_psgd", "noloco", "sgp", "choco_sgd", "local_sgd late", "local_sgd coded", "delayed_sgd", "slowmo"),
    *("hierarchical_local_sgd", "qsgd", "terngrad", "ef_signsgd", "qadam", "demo", "sparseloco", "easgd"),
    *("des_loc", "randomk_sgd", "bytegrad", "signsgd", "ef21"),
)
DECIDE_ON_HOST = {"selsync": 2, "gravac": 1}
"""Waits that a rank may have in a step: whether to exchange, and how many entries."""


def waits_of(place: Place, step: Callable[[], None], steps: int) -> list[str]:
    """Those in so many steps."""
    if place.pretended is None:
        return profiled_waits(step, steps)
    place.pretended.work.clear()
    for _ in range(steps):
        step()
    # What no line asked for are copies by Gloo, which stands in for NCCL.
    return [one for one in place.pretended.work.waits if not one.endswith(" at ?")]


def keep_pace(place: Place) -> None:
    """Look, without a wait of CUDA's, until the GPU that three ranks share has done what it was given: a host
    that is two steps ahead of it waits, and need not do more.
    """
    if place.pretended is None:
        done = torch.cuda.Event()
        done.record()
        while not done.query():
            time.sleep(0.001)


def waits(place: Place, name: str, reads: bool = False, freezes: bool = False) -> list[str]:
    """Those of this rank in steps 5 to 10.

    Args:
        place: where.
        name: of the algorithm.
        reads: whether the loop has one of its own in each step.
        freezes: whether layers in two buckets are frozen once it is attached.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(place.device)
    momentum = 0.0 if name in WITHOUT_MOMENTUM else 0.9
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    if name in WITH_ADAM:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = {
        "algorithm": CASES[name],
        "bucket_bytes": 20_000,
        "topology": TOPOLOGIES.get(name, "complete"),
    }
    x = torch.randn(16, 64, device=place.device)
    with relaxcomm.attach(model, optimizer, config) as engine:

        def step() -> None:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if reads:
                loss.item()
            keep_pace(place)

        for layer in (0, 3) if freezes else ():
            model[layer].requires_grad_(False)
        for _ in range(FIRST):
            step()
        found = waits_of(place, step, STEPS - FIRST)
        engine.close(average=False)
    return found


@pytest.mark.parametrize("name", [name if name in CHEAP else costly(name) for name in NAMES])
def test_no_wait(name):
    for found in run(waits, RANKS, name):
        assert not found, found


@pytest.mark.parametrize("name", [costly("selsync"), costly("gravac")])
def test_no_more_waits_than_decisions(name):
    for found in run(waits, RANKS, name):
        assert len(found) <= DECIDE_ON_HOST[name] * (STEPS - FIRST), found


@pytest.mark.parametrize(("name", "most"), [("bsp", 1), costly("gaussiank_sgd", 2)])
def test_frozen_layers_take_one_wait_for_all_buckets(name, most):
    for found in run(waits, RANKS, name, False, True):
        assert len(found) <= most * (STEPS - FIRST), found


def test_a_loop_that_reads_its_loss_is_seen_to_wait():
    for found in run(waits, 2, "bsp", True):
        assert len(found) >= STEPS - FIRST


def event(name: str, category: str, ts: float, thread: int, number: int = 0, dur: float = 1.0):
    words = {"correlation": number} if number else {}
    return {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": dur, "tid": thread, "args": words}


TRACE = [
    event("cudaStreamSynchronize", "cuda_runtime", 5, thread=1),  # before
    event("measured", "user_annotation", 10, thread=1, dur=80),
    event("cudaMemcpyAsync", "cuda_runtime", 12, thread=1, number=7),
    event("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 30, thread=9, number=7),
    event("cudaEventQuery", "cuda_runtime", 15, thread=1),
    event("autograd::engine::evaluate_function: MmBackward0", "cpu_op", 20, thread=2),
    event("cudaDeviceSynchronize", "cuda_runtime", 30, thread=3),  # of a thread that does not train
    event("cudaDeviceSynchronize", "cuda_runtime", 95, thread=1),  # the profiler's own, afterwards
]


@pytest.mark.parametrize("thread", [1, 2])
@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"])
def test_waits_are_those_of_threads_that_train_while_it_is_measured(name, thread):
    assert waits_in(TRACE) == []
    assert waits_in([*TRACE, event(name, "cuda_runtime", 40, thread)]) == [name]
    assert waits_in([*TRACE, event(f"{name}_v3020", "cuda_runtime", 40, thread)]) == [name]


def test_a_copy_into_memory_that_is_not_pinned_is_a_wait():
    copied = event("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", 200, thread=9, number=8)
    called = event("cudaMemcpyAsync", "cuda_runtime", 40, thread=2, number=8)
    assert waits_in([*TRACE, called, copied]) == ["Memcpy DtoH (Device -> Pageable)"]
    assert waits_in([*TRACE, {**called, "tid": 3}, copied]) == []


COPY = [  # as `tensor.tolist()` makes it; a trace is in no order of time
    event("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", 41, thread=9, number=8),
    event("cudaStreamSynchronize", "cuda_runtime", 42, thread=1, number=9),
    event("cudaMemcpyAsync", "cuda_runtime", 40, thread=1, number=8),
]


@pytest.mark.parametrize(
    ("more", "others"),
    [
        ([], []),
        ([event("cudaStreamSynchronize", "cuda_runtime", 43, thread=1)], ["cudaStreamSynchronize"]),
        ([event("cudaStreamSynchronize", "cuda_runtime", 41, thread=2)], ["cudaStreamSynchronize"]),
        ([event("cudaEventSynchronize", "cuda_runtime", 43, thread=1)], ["cudaEventSynchronize"]),
    ],
    ids=["alone", "and the stream once more", "beside another thread", "and an event"],
)
def test_a_copy_and_its_own_wait_for_the_stream_are_one_wait(more, others):
    assert waits_in([*TRACE, *COPY, *more]) == ["Memcpy DtoH (Device -> Pageable)", *others]


def test_a_trace_that_cannot_tell_is_an_error():
    with pytest.raises(ValueError, match="holds no 'measured'"):
        waits_in(TRACE[2:])
    with pytest.raises(ValueError, match="no call of CUDA's"):
        waits_in([one for one in TRACE if one["tid"] != 1 or one["cat"] == "user_annotation"])
