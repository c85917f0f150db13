"""Hosts on one machine: network namespaces joined by a bridge, with the kernel's byte counters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Host:
    """One namespace."""

    namespace: str
    address: str

    def popen(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a command on this host."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command],
            cwd=folder,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def ip(*arguments: str) -> None:
    """Run `ip`, and fail with what it says."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextmanager
def hosts(count: int, rate: str | None = None) -> Iterator[list[Host]]:
    """`count` hosts on a network of their own, removed whatever happens; the test is skipped where that
    cannot be.

    Args:
        count: number of hosts.
        rate: of each link, such as "100mbit", or None for unshaped links.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    tag = uuid.uuid4().hex[:6]
    bridge = f"rb{tag}"
    with ExitStack() as stack:
        try:
            ip("link", "add", bridge, "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no bridge can be made here: {error.stderr.strip()}")
        stack.callback(ip, "link", "del", bridge)
        ip("link", "set", bridge, "up")
        found = []
        for index in range(count):
            name, veth, address = f"rn{tag}{index}", f"rv{tag}{index}", f"10.77.0.{index + 1}"
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", veth, "master", bridge, "up")
            for arguments in (
                ("addr", "add", f"{address}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("link", "set", "lo", "up"),
            ):
                ip("-n", name, *arguments)
            # Neighbour discovery would be counted.
            quiet = ["ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]
            subprocess.run(quiet, check=False, capture_output=True)
            if rate is not None:
                shape = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate]
                inside = ["ip", "netns", "exec", name, *shape, "burst", "256kb", "latency", "400ms"]
                subprocess.run(inside, check=True, capture_output=True)
            found.append(Host(name, address))
        yield found


def run_everywhere(
    on: list[Host], script: str, environment: Mapping[str, str] | None = None, timeout: float = 90
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
