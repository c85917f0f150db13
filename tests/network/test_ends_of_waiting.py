"""Whole jobs, started as torchrun does: what is attached again, what is missing, and what is left behind."""

from __future__ import annotations

import pickle
import re

import pytest

from tests.ranks import launch_script

pytestmark = pytest.mark.ranks

BEGIN = """
import gc, os, signal, sys, time
import torch, relaxcomm

rank = int(os.environ["RANK"])
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(algorithm, steps, limit=30):
    with relaxcomm.attach(model, optimizer, {"algorithm": algorithm, "timeout_seconds": limit}):
        for step in range(steps):
            if step == 5 and STOPS and rank == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

STOPS = False
"""
LEAKS = """
def held():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

train("bsp", 2)  # the store, which stays
time.sleep(0.3)  # in which threads that were told to end do
before = held()
for algorithm in ("bsp", "local_sgd", "ssp", "async_model_average", "d_psgd"):
    train(algorithm, 20)
    deadline, after = time.monotonic() + 60, held()
    while after[0] > before[0] or after[1] > before[1]:  # until threads that were told to end have
        assert time.monotonic() < deadline, (algorithm, before, after)
        time.sleep(0.05)
        after = held()
"""
STOPPED = """
STOPS = True
os.environ["TORCH_FR_DUMP_TEMP_FILE"] = os.getcwd() + "/trace_"
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
begin = time.monotonic()
try:
    train("bsp", 50, limit=4)
finally:
    print(f"waited {time.monotonic() - begin:.1f}", file=sys.stderr)
"""
MISSING = """
if rank == 2:
    signal.pause()
begin = time.monotonic()
try:
    train("bsp", 5, limit=4)
finally:
    print(f"waited {time.monotonic() - begin:.1f}", file=sys.stderr)
"""
UNEQUAL = """
from dataclasses import replace
from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Compressor, Dense, frozen
from relaxcomm.primitives import all_reduce, gradients, identity

@frozen
class shorter_by_rank(Compressor):
    facts = replace(identity.facts, linear=False, unbiased=False)

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        parts = yield Dense(tensor[: tensor.numel() - cx.membership.rank].clone())
        return tensor, tensor

    def message_bytes(self, numel, element_bytes):
        return numel * element_bytes

train(Algorithm((Rule(payload=gradients(), compressor=shorter_by_rank(), exchange=all_reduce()),)), 5)
"""
FOREIGN = """
if rank == 1:
    model.named_buffers = None  # attach itself stumbles over it
train("bsp", 5)
"""


def test_attach_after_close_in_one_process_leaves_nothing_behind():
    done = launch_script(BEGIN + LEAKS, 3)
    assert [one.returncode for one in done] == [0, 0, 0], [one.stderr for one in done]


@pytest.mark.parametrize(("script", "absent"), [(STOPPED, 0), (MISSING, 2)], ids=["stopped", "missing"])
def test_nobody_waits_longer_than_the_limit(script, absent, tmp_path):
    script = script.replace("os.getcwd()", repr(str(tmp_path)))
    for one in launch_script(BEGIN + script, 3, never_end={absent}):
        assert one.returncode == 1, one.stderr
        assert "timeout_seconds" in one.stderr
        assert float(re.findall(r"waited ([\d.]+)", one.stderr)[0]) < 4 + 15  # on a busy machine
        if absent == 0:
            assert "rank 0 is stopped (process" in one.stderr
    if absent == 0:
        traces = [pickle.loads((tmp_path / f"trace_{rank}").read_bytes()) for rank in (1, 2)]
        assert all("entries" in trace for trace in traces)


def test_any_error_in_attach_ends_the_others():
    done = launch_script(BEGIN + FOREIGN, 3)
    assert "TypeError" in done[1].stderr
    for one in (done[0], done[2]):
        assert "CommunicationError: rank 1: TypeError" in one.stderr


def test_those_whose_peer_gloo_aborts_are_told_how_to_learn_why():
    done = launch_script(BEGIN + UNEQUAL, 3)
    left = [one.stderr for one in done if "EnforceNotMet" not in one.stderr]
    assert 0 < len(left) < 3
    assert all("has ended without a message" in said and "set debug: true" in said for said in left), left
