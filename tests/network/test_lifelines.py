"""A process on another host that ends is known to have ended at once, and one that is stopped is not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from relaxcomm.network import lifelines
from relaxcomm.network.processes import ENDED, condition_of, this_process, watch
from tests.waiting import until

SCRIPT = """
import importlib.util, os, signal, sys, time
def fork(number, frame):
    if os.fork() == 0:
        print("child", flush=True)
        time.sleep(20)
        os._exit(0)
signal.signal(signal.SIGUSR1, fork)
spec = importlib.util.spec_from_file_location("lifelines", sys.argv[1])
lifelines = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lifelines)
print(lifelines.listen(), flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process, and what it would tell of itself on another host."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    command = [sys.executable, "-c", SCRIPT, str(Path(lifelines.__file__))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, f"{process.pid} elsewhere {process.stdout.readline().strip()}"
        process.kill()


def test_one_that_is_killed_is_known_to_have_ended(other):
    process, told = other
    watch(told)
    os.kill(process.pid, signal.SIGSTOP)
    assert condition_of(told) == "", "stopped, it may come again"
    process.kill()
    until(lambda: condition_of(told).startswith(ENDED), "its end", 10)
    assert condition_of(told).startswith(ENDED), "it stays so"


def test_one_that_never_was_reached_is_not_taken_for_ended(other):
    process, told = other
    process.kill()
    process.wait()
    watch(told)
    assert condition_of(told) == ""


def test_a_child_does_not_keep_a_process_alive(other):
    """A loader's process is forked off one that listens, and lives a little longer."""
    process, told = other
    watch(told)
    assert process.stdout is not None
    process.send_signal(signal.SIGUSR1)  # it forks
    assert process.stdout.readline() == "child\n"
    process.kill()
    until(lambda: condition_of(told).startswith(ENDED), "its end", 10)


def test_a_process_that_is_not_watched_listens_nowhere():
    assert this_process(is_watched=False).count(" ") == 1


def test_where_a_host_has_ipv6_alone_processes_are_watched_too(monkeypatch):
    found = [SimpleNamespace(family=socket.AF_INET6, address=one) for one in ("fe80::1%lo", "::1")]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": found})
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth0")
    monkeypatch.setattr(lifelines, "_listening", [])
    monkeypatch.setattr(lifelines, "_watched", watched := {})
    address = lifelines.listen()
    assert address.startswith("::1 ")
    lifelines.watch(address)
    assert not lifelines.has_ended(address)
    assert lifelines.answers(address)
    lifelines._listening.pop().close()  # as the system does at its process's end
    assert not lifelines.answers(address)
    until(lambda: lifelines.has_ended(address), "its end", 10)
    assert watched == {address: None}
