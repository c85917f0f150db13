"""Hosts of the lab in tests, which are skipped where there can be none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from benchmarks.lab import network
from benchmarks.lab.network import Host, NetworkUnavailableError


@contextmanager
def hosts(count: int, rate: str | None = None) -> Iterator[list[Host]]:
    """As in the lab; the test is skipped where hosts cannot be made."""
    try:
        with network.hosts(count, rate) as made:
            yield made
    except NetworkUnavailableError as error:
        pytest.skip(str(error))


def run_everywhere(
    on: Sequence[Host], script: str, environment: Mapping[str, str] | None = None, timeout: float = 240
) -> list[str]:
    """Run a script as one rank on each host and return what they print; a failure fails the test."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank, host in enumerate(on):
            places = {"MASTER_ADDR": on[0].address, "MASTER_PORT": "29533"}
            ranks = {"RANK": str(rank), "WORLD_SIZE": str(len(on))}
            everything = {**places, **ranks, **(environment or {})}
            processes.append(host.popen([sys.executable, "-c", script], everything))
        return finish(processes, timeout)
    finally:
        for process in processes:
            process.kill()


def finish(processes: Sequence[subprocess.Popen[str]], timeout: float) -> list[str]:
    """What processes print until they end; a failure fails the test."""
    outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs
