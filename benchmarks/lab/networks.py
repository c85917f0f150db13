"""What ranks are put on: hosts of their own or, where none can be made, a throttle in each rank."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab.network import NetworkUnavailableError, Rank, hosts

RATE_FILE = "LAB_RATE_FILE"  # the variable that tells a throttled process where its rate stands


@dataclass(frozen=True)
class Process(Rank):
    """A rank on the loopback device, which holds back its own results, at the rate set before a trial.

    Args:
        rate_file: where its rate stands; empty for none.
        address: of all ranks.
    """

    rate_file: Path
    address: str = "127.0.0.1"

    def placed(self, command: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        return command, {"GLOO_SOCKET_IFNAME": "lo", RATE_FILE: str(self.rate_file)}

    def shape(self, rate: str | None) -> None:
        self.rate_file.write_text(rate or "")


@contextmanager
def processes(count: int) -> Iterator[list[Process]]:
    """`count` ranks without hosts."""
    with tempfile.TemporaryDirectory() as folder:
        made = [Process(Path(folder) / str(index)) for index in range(count)]
        for one in made:
            one.shape(None)
        yield made


@dataclass(frozen=True)
class Network:
    """A way to slow links.

    Args:
        mark: of its records.
        make: so many ranks on it.
    """

    mark: str
    make: Callable[[int], AbstractContextManager[Sequence[Rank]]]


NETWORKS = {"namespaces": Network("namespaces", hosts), "throttle": Network("throttled", processes)}


def missing(network: str) -> str | None:
    """Why a network cannot be made here, or None."""
    try:
        with NETWORKS[network].make(1) as (one,):
            one.shape("100mbit")  # which not every kernel can
    except (NetworkUnavailableError, subprocess.CalledProcessError) as error:
        return str(error)
    return None


def usable(wanted: str) -> str:
    """The network that is wanted or, where no hosts can be made, the throttle, with a line on stderr."""
    if reason := missing(wanted):
        print(f"{reason}; throttled at the transport instead, which is not a network", file=sys.stderr)
        return "throttle"
    return wanted
