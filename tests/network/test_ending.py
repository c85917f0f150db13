"""A rank that raises ends with its own traceback, and the others with one line of C++ at most: no stacks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.ports import free_port
from relaxcomm.network.liveness import without_frames
from tests.faults.small_script import MEET, kept_store
from tests.interpreters import run_interpreters

SCRIPT = (
    MEET
    + """
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with relaxcomm.attach(model, optimizer, {"algorithm": ALGORITHM, "timeout_seconds": 100}):
    for step in range(20):
        if rank == 1 and step == 5:
            raise KeyError("mine")
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
"""
)


@pytest.mark.ranks
@pytest.mark.parametrize("algorithm", ["ssp", pytest.param("ad_psgd", marks=pytest.mark.slow)])
def test_a_rank_that_raises_ends_no_process_by_terminate(algorithm):
    """Whole interpreters: threads that wait in Gloo wake when Python is about to be gone."""
    store = kept_store()
    places = [{"RANK": str(rank), "WORLD_SIZE": "3"} for rank in range(3)]
    given = json.dumps({"ALGORITHM": algorithm, "PORT": store.port})
    ranks = run_interpreters(SCRIPT, [given], places)
    errors = [rank.stderr for rank in ranks]
    del store
    assert [rank.returncode for rank in ranks] == [1, 1, 1], errors
    for error in errors:
        assert "terminate called" not in error
        assert "frame #" not in error
        assert "Exception raised from" not in error
    assert "KeyError: 'mine'" in errors[1]
    for error in (errors[0], errors[2]):
        assert "RankLostError" in error
        assert "rank 1 failed: KeyError: 'mine'" in error


def test_cpp_stacks_are_cut_out_of_errors():
    error = (
        "recvValue failed: got 0 bytes.\n"
        "Exception raised from recvBytes at /pytorch/Utils.hpp:787 (most recent call first):\n"
        "frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7f8a in libc10.so)\n"
        "frame #1: <unknown function> + 0x674862d (0x7f8a50f4862d in libtorch_cpu.so)\n"
    )
    assert without_frames(RuntimeError(error)) == "recvValue failed: got 0 bytes."
    assert without_frames("rank 2 says:\ntwo lines") == "rank 2 says:\ntwo lines"


LEFT = """
import os, sys, torch
from relaxcomm import attach

place = f"tcp://127.0.0.1:{sys.argv[1]}"
torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with attach(model, optimizer, "bsp"):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
tasks = os.listdir("/proc/self/task")
print([name for one in tasks if "gloo" in (name := open(f"/proc/self/task/{one}/comm").read().strip())])
"""


@pytest.mark.ranks
def test_no_thread_of_the_default_group_outlives_it():
    """It would wake while Python ends, and end the process by terminate.

    In an interpreter that has not imported what would keep the group, as those that others fork off have.
    """
    command = [sys.executable, "-c", LEFT, str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["[]"]), done.stderr
