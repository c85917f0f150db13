"""What a training job listens on, of which other machines reach nothing unless they are to."""

from __future__ import annotations

import ipaddress
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

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
        deadline = time.monotonic() + 120
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
