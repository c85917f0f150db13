"""Hosts of the lab in tests, which are skipped where there can be none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from benchmarks.lab import network
from benchmarks.lab.network import Host, NetworkUnavailableError
from tests.ranks import launch_script


@contextmanager
def hosts(count: int, rate: str | None = None) -> Iterator[list[Host]]:
    """As in the lab; the test is skipped where hosts cannot be made."""
    try:
        with network.hosts(count, rate) as made:
            yield made
    except NetworkUnavailableError as error:
        pytest.skip(str(error))


# As `ip netns exec` does, but for /sys: so what is forked off, with all imported, goes to its host.
_ENTER = """
import ctypes, os
_namespace = open("/run/netns/" + os.environ["HOST"])
if ctypes.CDLL(None, use_errno=True).setns(_namespace.fileno(), 0):
    raise OSError(ctypes.get_errno(), "setns " + _namespace.name)
_namespace.close()
"""


def run_everywhere(
    on: Sequence[Host], script: str, environment: Mapping[str, str] | None = None, timeout: float = 240
) -> list[str]:
    """Run a script as one rank on each host and return what they print; a failure fails the test."""
    places = []
    for rank, host in enumerate(on):
        master = {"MASTER_ADDR": on[0].address, "MASTER_PORT": "29533"}
        own = {"RANK": str(rank), "WORLD_SIZE": str(len(on)), "HOST": host.namespace}
        places.append({**master, **own, **host.placed([])[1], **(environment or {})})
    ended = launch_script(_ENTER + script, len(on), timeout, environments=places)
    for one in ended:
        assert one.returncode == 0, one.stdout + one.stderr
    return [one.stdout for one in ended]


def finish(processes: Sequence[subprocess.Popen[str]], timeout: float) -> list[str]:
    """What processes print until they end; a failure fails the test."""
    outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs
