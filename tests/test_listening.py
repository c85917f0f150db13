"""What a training job listens on, of which other machines reach nothing unless they are to."""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.ports import free_port

CONFIG = """
algorithm: {name: %s}
task: {digits: {epochs: 400}}
workers: 2
timeout_seconds: 60
metrics: {port: 0%s}
"""


def listening(pid: int) -> set[str]:
    """The addresses on which a process and those below it listen."""
    found = set()
    for one in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            found |= {c.laddr.ip for c in one.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN}
        except psutil.NoSuchProcess:
            continue
    return found


def while_training(folder: Path, algorithm: str, metrics: str = "") -> set[str]:
    """All addresses on which a job of `relaxcomm train` has listened until it had trained a while."""
    path = folder / "job.yaml"
    path.write_text(CONFIG % (algorithm, metrics))
    log = (folder / "log").open("w+")
    job = subprocess.Popen([sys.executable, "-m", "relaxcomm", "train", str(path)], stdout=log, stderr=log)
    found: set[str] = set()
    try:
        deadline = time.monotonic() + 240
        while not re.search(r"step \d", (folder / "log").read_text()):
            assert job.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            found |= listening(job.pid)
            time.sleep(0.1)
        return found | listening(job.pid)
    finally:
        job.terminate()
        job.wait(30)
        log.close()


@pytest.mark.ranks
@pytest.mark.parametrize("algorithm", ["ssp", pytest.param("local_sgd", marks=pytest.mark.faults)])
def test_all_that_listens_is_on_loopback(algorithm, tmp_path):
    found = while_training(tmp_path, algorithm)
    assert found, "a store, an exporter and Gloo listen"
    assert [one for one in found if not ipaddress.ip_address(one).is_loopback] == []


@pytest.mark.ranks
@pytest.mark.faults
def test_an_exporter_listens_elsewhere_when_it_is_told_to(tmp_path):
    assert "0.0.0.0" in while_training(tmp_path, "local_sgd", ', address: "0.0.0.0"')


SCRIPT = """
import sys, torch, relaxcomm
model = torch.nn.Linear(2, 2)
with relaxcomm.attach(model, None, {"algorithm": "bsp", "timeout_seconds": 60}):
    model(torch.ones(1, 2)).sum().backward()
    print("attached", flush=True)
    sys.stdin.read()
"""


@pytest.mark.ranks
@pytest.mark.faults
def test_a_script_whose_ranks_are_named_listens_on_loopback():
    """Rank 0 holds the store, which torch would let everybody reach."""
    named = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, **named, "RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert [one.stdout.readline() for one in ranks] == ["attached\n"] * 2
        found = set.union(*(listening(one.pid) for one in ranks))
    finally:
        for one in ranks:
            one.stdin.close()  # then they end, together
        for one in ranks:
            one.wait(60)
            one.stdout.close()
    assert {ipaddress.ip_address(one).is_loopback for one in found} == {True}
    assert [one.returncode for one in ranks] == [0, 0]
