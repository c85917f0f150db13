"""How an example is started on hosts: by torchrun, or on a Ray cluster of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.lab.network import Host

RANKS_A_HOST = {"accelerate": 1, "fsdp2": 2, "lightning": 1, "ray": 1, "torchtitan": 1, "transformers": 1}
_PORT = "29599"


@contextmanager
def launched(
    example: str, script: Path, on: list[Host], arguments: Sequence[str]
) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of a training, the first of which prints what came out; all have ended afterwards."""
    with ExitStack() as stack:
        command = [str(script), *arguments]
        if example == "ray":
            # A folder where nobody else finds the cluster.
            folder = stack.enter_context(TemporaryDirectory(prefix="ray"))
            # A home without the token that other clusters have left. And Ray would take a report every two
            # seconds, which is more than an epoch.
            own = {"HOME": folder, "RAY_TMPDIR": folder, "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1"}
            address = _ray_cluster(stack, on, own)
            yield [_started(stack, on[0], [sys.executable, *command], own | {"RAY_ADDRESS": address})]
        else:
            yield [
                _started(stack, host, [*_torchrun(example, on, node), *command], {})
                for node, host in enumerate(on)
            ]


def _torchrun(example: str, on: list[Host], node: int) -> list[str]:
    counts = {"nnodes": len(on), "node-rank": node, "nproc-per-node": RANKS_A_HOST[example]}
    where = {"master-addr": on[0].address, "master-port": _PORT}
    options = [f"--{name}={value}" for name, value in (counts | where).items()]
    return [sys.executable, "-m", "torch.distributed.run", *options]


def _ray_cluster(stack: ExitStack, on: list[Host], own: Mapping[str, str]) -> str:
    """Start a node of one processor on each host; the address of the first."""
    ray, address = str(Path(sys.executable).with_name("ray")), f"{on[0].address}:6379"
    for node, host in enumerate(on):
        head = ["--head", "--port=6379", "--include-dashboard=false", "--disable-usage-stats"]
        where = head if node == 0 else [f"--address={address}"]
        command = [ray, "start", *where, f"--node-ip-address={host.address}", "--num-cpus=1", "--block"]
        process = _started(stack, host, command, own)
        _wait_for(process, "Ray runtime started")
    return address


def _wait_for(process: subprocess.Popen[str], said: str) -> None:
    seen = []
    assert process.stdout is not None  # Host.popen gives it a pipe
    for line in process.stdout:
        seen.append(line)
        if said in line:
            time.sleep(1)  # until its workers can be asked for
            return
    raise RuntimeError(f"Ray did not start: {''.join(seen)[-2000:]}")


def _started(
    stack: ExitStack, host: Host, command: Sequence[str], own: Mapping[str, str]
) -> subprocess.Popen[str]:
    process = host.popen(command, {"HF_HUB_OFFLINE": "1", **own})
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    """End what was started, and all that came of it: a node of Ray takes half a minute to end by itself."""
    if process.poll() is None:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
