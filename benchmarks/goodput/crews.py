"""Four workers of a contender: started, killed one at a time, and each started again when it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from torch.distributed import TCPStore

from benchmarks.faults import notes
from benchmarks.ports import free_port

SIZE = 4
ROOT = Path(__file__).parents[2]


class Crew(ABC):
    """The workers of one contender.

    Args:
        folder: in which they keep what they note.
        python: the interpreter of their environment.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path, python: str) -> None:
        self._folder, self._python = folder, python
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._others: list[subprocess.Popen[bytes]] = []
        self._errors = (folder / "errors").open("ab")
        self.restarted = 0
        """How many processes were started in place of others."""

    @abstractmethod
    def start(self) -> None:
        """Start all workers."""

    def kill(self, worker: int) -> None:
        """End a worker's process, without a word."""
        self._processes[worker].kill()

    @abstractmethod
    def look(self) -> None:
        """Start again who has ended; called often."""

    def close(self) -> None:
        """End everything."""
        for process in (*self._processes.values(), *self._others):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._errors.close()

    def notes(self, worker: int) -> list[dict[str, Any]]:
        """What a worker has noted so far."""
        return notes.read(self._folder / f"{worker}.notes")

    def errors(self) -> str:
        """What all have written to standard error."""
        return (self._folder / "errors").read_text(errors="replace")

    def _popen(self, command: list[str], **variables: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, "PYTHONPATH": str(ROOT), "GOODPUT_FOLDER": str(self._folder)},
            stdout=self._errors,
            stderr=self._errors,
            start_new_session=True,
        )

    def _worker(self, module: str, worker: int, **variables: str) -> None:
        mine = {"GOODPUT_NOTES": str(self._folder / f"{worker}.notes"), "GOODPUT_WORKER": str(worker)}
        command = [self._python, "-m", f"benchmarks.goodput.{module}"]
        self._processes[worker] = self._popen(command, **mine, **variables)


class Ours(Crew):
    """relaxcomm with `membership: {elastic: true}`; who was killed comes back as a newcomer."""

    name = "relaxcomm bsp"
    module = "ours"

    def start(self) -> None:
        self._store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        at = f"127.0.0.1:{self._store.port}"
        for worker in range(SIZE):
            self._worker(self.module, worker, GOODPUT_STORE=at, RANK=str(worker), WORLD_SIZE=str(SIZE))

    def look(self) -> None:
        for worker, process in self._processes.items():
            if process.poll() is not None:
                self.restarted += 1
                self._worker(self.module, worker, RELAXCOMM_JOIN=f"127.0.0.1:{self._store.port}")


class Replicas(Crew):
    """torchft 0.2: a lighthouse, and one replica group a worker."""

    name = "torchft 0.2"

    def start(self) -> None:
        port = free_port()
        self._at = f"http://127.0.0.1:{port}"
        lighthouse = str(Path(self._python).with_name("torchft_lighthouse"))
        # As in torchft's README.
        options = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
        self._others.append(self._popen([lighthouse, "--bind", f"127.0.0.1:{port}", *options]))
        time.sleep(1.0)
        for worker in range(SIZE):
            self._worker("replicas", worker, TORCHFT_LIGHTHOUSE=self._at)

    def look(self) -> None:
        for worker, process in self._processes.items():
            if process.poll() is not None:
                self.restarted += 1
                self._worker("replicas", worker, TORCHFT_LIGHTHOUSE=self._at)


class Restarting(Crew):
    """torchrun, which ends all workers when one ends, and starts all of them from the last checkpoint."""

    name = "torchrun restart"

    def start(self) -> None:
        run = [self._python, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1000"]
        module = ["-m", "benchmarks.goodput.restarting"]
        # One store for all attempts leads Gloo to addresses of ranks that have ended.
        apart = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self._others.append(self._popen([*run, "--nproc-per-node", str(SIZE), *module], **apart))

    def kill(self, worker: int) -> None:
        number = [note["number"] for note in self.notes(worker) if note["kind"] == "process"][-1]
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)

    def close(self) -> None:
        super().close()
        for worker in range(SIZE):  # each in a session of its own
            with suppress(IndexError):
                self.kill(worker)

    def look(self) -> None:
        starts = [note for note in self.notes(0) if note["kind"] == "process"]
        self.restarted = SIZE * max(0, len(starts) - 1)


def contenders(torchft_python: str | None) -> dict[type[Crew], str]:
    """Each contender, and the interpreter of its environment."""
    found: dict[type[Crew], str] = {Ours: sys.executable, Restarting: sys.executable}
    if torchft_python is not None:
        found[Replicas] = torchft_python
    return found
