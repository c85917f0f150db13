"""The hosts' processes, told from outside what to run."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lab.network import Rank
from benchmarks.lab.networks import NETWORKS
from benchmarks.lab.trial import Job
from benchmarks.ports import free_port

ROOT = Path(__file__).parents[2]
_LOOK_SECONDS = 1.0


class Crew:
    """One process on each host, running one trial after another."""

    def __init__(
        self, on: Sequence[Rank], processes: list[subprocess.Popen[str]], errors: Path, network: str
    ) -> None:
        self._hosts, self._processes, self._errors, self.network = on, processes, errors, network
        self._rate: str | None = None

    @property
    def workers(self) -> int:
        """Number of ranks."""
        return len(self._hosts)

    def run(self, job: Job, rate: str | None) -> dict[str, Any]:
        """Run a trial over links of a rate; what its ranks saw becomes one record.

        Returns: the job, the network and the rate; `points`, those that were judged, as (step, seconds of
            the slowest rank, bytes sent by all hosts, quality of the first rank's model, quality of the mean
            model); seconds, bytes and step times.

        Raises: RuntimeError if a rank fails, with what it printed.
        """
        return {"network": self.network, "rate": rate, **asdict(job), **_merge(self.ask(asdict(job), rate))}

    def ask(self, message: Mapping[str, Any], rate: str | None) -> list[dict[str, Any]]:
        """Tell all processes the same over links of a rate; their answers, by rank.

        Raises: RuntimeError if a process ends, with what it printed.
        """
        if rate != self._rate:
            for host in self._hosts:
                host.shape(rate)
            self._rate = rate
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        return [json.loads(self._line_of(process, message)) for process in self._processes]

    def _line_of(self, process: subprocess.Popen[str], message: Mapping[str, Any]) -> str:
        """A host's answer; where any host's process ends, the others would wait for it for ever."""
        assert process.stdout is not None
        while not select.select([process.stdout], [], [], _LOOK_SECONDS)[0]:
            if any(one.poll() is not None for one in self._processes):
                break
        else:
            if line := process.stdout.readline():
                return line
        raise RuntimeError(f"{message}: a host's process ended:\n{self._errors.read_text()[-3000:]}")


def _merge(answers: list[dict[str, Any]]) -> dict[str, Any]:
    points = []
    for index, ranks in enumerate(zip(*(answer["points"] for answer in answers), strict=True)):
        found = answers[0]["qualities"].get(str(index))
        if found is None:
            continue
        seconds, sent = max(rank[1] for rank in ranks), sum(rank[2] for rank in ranks)
        points.append((ranks[0][0], round(seconds, 4), sent, round(found["own"], 4), round(found["mean"], 4)))
    return {
        "points": points,
        "seconds": max(answer["seconds"] for answer in answers),
        "bytes_sent": sum(answer["bytes_sent"] for answer in answers),
        "cpu_seconds": sum(answer["cpu_seconds"] for answer in answers),
        "step_seconds": median(answers[0]["step_seconds"]),
        "communication": answers[0]["communication"],
        "note": answers[0]["note"],
    }


@contextmanager
def crew(
    workers: int,
    python: str = sys.executable,
    network: str = "namespaces",
    module: str = "benchmarks.lab.worker",
) -> Iterator[Crew]:
    """A crew of `workers` hosts, gone afterwards whatever happens.

    Args:
        workers: number of hosts.
        python: interpreter of the environment that the trials need.
        network: of `NETWORKS`.
        module: what each host's process runs.
    """
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="lab", dir=memory))
    errors, port = folder / "errors", str(free_port())
    processes: list[subprocess.Popen[str]] = []
    try:
        with NETWORKS[network].make(workers) as on, errors.open("w") as shared:
            for rank, host in enumerate(on):
                place = {"MASTER_ADDR": on[0].address, "MASTER_PORT": port, "LAB_FOLDER": str(folder)}
                ranks = {"RANK": str(rank), "WORLD_SIZE": str(workers)}
                command = [python, "-m", module]
                processes.append(
                    host.popen(command, {**place, **ranks}, ROOT, stdin=subprocess.PIPE, stderr=shared)
                )
            try:
                yield Crew(on, processes, errors, NETWORKS[network].mark)
            finally:
                _end(processes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end(processes: list[subprocess.Popen[str]]) -> None:
    """Let them end, and then end what they have started and left, such as a peer's daemon."""
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()
    for process in processes:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()
