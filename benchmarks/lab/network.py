"""Hosts on one machine: network namespaces joined by a bridge, their links shaped, their bytes counted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

DEVICE = "eth0"  # of every host
BURST_BYTES = 256 * 1024  # that pass a shaped link at once


class NetworkUnavailableError(RuntimeError):
    """Hosts cannot be made here; the message says what is missing."""


class Rank(ABC):
    """Where the command of a rank runs, behind a link that can be shaped."""

    address: str

    @abstractmethod
    def placed(self, command: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command that runs another one there, and the variables that tell it where it is."""

    @abstractmethod
    def shape(self, rate: str | None) -> None:
        """Limit what it sends.

        Args:
            rate: as `tc` writes it, such as "100mbit"; None takes the limit away.
        """

    def popen(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        *,
        stdin: int | None = None,
        stderr: int | IO[str] = subprocess.STDOUT,
    ) -> subprocess.Popen[str]:
        """Start a command there, in a session of its own; its output is a pipe."""
        placed, where = self.placed(command)
        return subprocess.Popen(
            placed,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **where, **environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )


@dataclass(frozen=True)
class Host(Rank):
    """One namespace.

    Args:
        namespace: its name.
        address: of its only link.
        port: the other end of the link, on the bridge.
        bridge: that joins the hosts.
    """

    namespace: str
    address: str
    port: str
    bridge: str

    def placed(self, command: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        return ["ip", "netns", "exec", self.namespace, *command], {"GLOO_SOCKET_IFNAME": DEVICE}

    def shape(self, rate: str | None) -> None:
        inside = ["ip", "netns", "exec", self.namespace, "tc", "qdisc"]
        subprocess.run([*inside, "del", "dev", DEVICE, "root"], check=False, capture_output=True)
        if rate is not None:
            bucket = ["tbf", "rate", rate, "burst", str(BURST_BYTES), "latency", "400ms"]
            subprocess.run(
                [*inside, "add", "dev", DEVICE, "root", *bucket], check=True, capture_output=True, text=True
            )

    def cut(self) -> None:
        """Let nothing through, without a word to either side, as when a switch fails."""
        _ip("link", "set", self.port, "nomaster")

    def mend(self) -> None:
        """Let everything through again."""
        _ip("link", "set", self.port, "master", self.bridge)


def end_in_order() -> None:
    """Make an exception of SIGTERM, so that hosts and bridges are taken away."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def sent_bytes() -> int:
    """What the kernel saw this host send; called on the host."""
    return int(Path(f"/sys/class/net/{DEVICE}/statistics/tx_bytes").read_text())


@contextmanager
def hosts(count: int, rate: str | None = None) -> Iterator[list[Host]]:
    """`count` hosts on a network of their own, removed whatever happens.

    Args:
        count: number of hosts.
        rate: of each link, such as "100mbit", or None for unshaped links.

    Raises: NetworkUnavailableError without root, iproute2, or a kernel that makes bridges.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        raise NetworkUnavailableError("network namespaces need root and iproute2 (ip, tc)")
    tag = uuid.uuid4().hex[:6]
    bridge = f"rb{tag}"
    with ExitStack() as stack:
        try:
            _ip("link", "add", bridge, "type", "bridge")
            stack.callback(_ip, "link", "del", bridge)
            _ip("link", "set", bridge, "up")
            made = [_host(stack, bridge, tag, index, rate) for index in range(count)]
        except subprocess.CalledProcessError as error:
            failed = f"{' '.join(error.cmd)}: {error.stderr.strip()}"
            raise NetworkUnavailableError(f"no hosts can be made here: {failed}") from None
        yield made


def _host(stack: ExitStack, bridge: str, tag: str, index: int, rate: str | None) -> Host:
    veth = f"rv{tag}{index}"
    host = Host(f"rn{tag}{index}", f"10.77.0.{index + 1}", veth, bridge)
    _ip("netns", "add", host.namespace)
    stack.callback(_ip, "netns", "del", host.namespace)
    _ip("link", "add", veth, "type", "veth", "peer", "name", DEVICE, "netns", host.namespace)
    _ip("link", "set", veth, "master", bridge, "up")
    _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", DEVICE)
    for device in (DEVICE, "lo"):
        _ip("-n", host.namespace, "link", "set", device, "up")
    # Neighbour discovery would be counted.
    quiet = ["ip", "netns", "exec", host.namespace, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]
    subprocess.run(quiet, check=False, capture_output=True)
    host.shape(rate)
    return host


def _ip(*arguments: str) -> None:
    """Run `ip`, and fail with what it says."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
