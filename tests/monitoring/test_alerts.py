"""Real faults make a real Prometheus raise each alert, and their end takes it back; 30 times faster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.server import Job, Prometheus, job, prometheus
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.ranks, pytest.mark.timeout(400)]
FASTER, SCRAPE = 30, "500ms"
STALLED, STANDS, DRIFT = "RelaxcommWorkerStalled", "RelaxcommTrainingStands", "RelaxcommReplicaDrift"
QUIET, RESIDUAL = "RelaxcommNoSynchronisation", "RelaxcommResidualGrowing"
EXPOSED = "RelaxcommExposedCommunication"


@contextmanager
def watched(folder: Path, algorithm: Any) -> Iterator[tuple[Job, Prometheus]]:
    """A job whose three ranks a Prometheus has found."""
    with (
        job(folder / "job", algorithm) as training,
        prometheus(folder, training.port, FASTER, SCRAPE) as server,
    ):
        until(lambda: len(server.query("up == 1")) == 3, "all ranks", 60)
        yield training, server


def test_a_stopped_worker(tmp_path: Path):
    with watched(tmp_path, "bsp") as (training, server):
        until(lambda: server.query("relaxcomm_steps_total > 20"), "steps", 60)
        assert not {name for name, _ in server.firing()} & {STALLED, STANDS}
        os.kill(training.processes[1].pid, signal.SIGSTOP)
        until(lambda: server.firing() >= {(STALLED, "1"), (STANDS, "0"), (STANDS, "2")}, STALLED, 60)
        assert {rank for name, rank in server.firing() if name == STALLED} == {"1"}
        os.kill(training.processes[1].pid, signal.SIGCONT)
        until(lambda: not {n for n, _ in server.firing()} & {STALLED, STANDS}, "the end of the alerts", 60)
        training.end()


def test_a_perturbed_replica(tmp_path: Path):
    algorithm = {"name": "local_sgd", "steps": 4}
    with watched(tmp_path, algorithm) as (training, server):
        until(lambda: server.query("relaxcomm:replica_distance:ratio < 0.1"), "small distances", 60)
        assert DRIFT not in {name for name, _ in server.firing()}
        training.tell("perturb")
        until(lambda: (DRIFT, "2") in server.firing(), DRIFT, 60)
        training.untell("perturb")
        until(lambda: DRIFT not in {n for n, _ in server.firing()}, "the end of the alert", 60)
        training.end()


def test_no_synchronisation_and_a_slow_worker(tmp_path: Path):
    algorithm = {"name": "selsync", "threshold": 0.5, "window_steps": 1, "smoothing": 0.5}
    with watched(tmp_path, algorithm) as (training, server):
        training.tell("loud")  # gradients jump, so the workers synchronise
        synchronised = 'relaxcomm_steps_total{outcome="synchronised"} > 10'
        until(lambda: server.query(synchronised), "synchronisations", 60)
        assert QUIET not in {name for name, _ in server.firing()}
        training.untell("loud")
        until(lambda: {(QUIET, str(rank)) for rank in range(3)} <= server.firing(), QUIET, 120)
        training.tell("loud")
        until(lambda: QUIET not in {n for n, _ in server.firing()}, "the end of the alert", 60)
        assert (EXPOSED, "") not in server.firing()
        training.tell("slow")  # the others wait for it
        until(lambda: (EXPOSED, "") in server.firing(), EXPOSED, 90)
        training.untell("slow")
        until(lambda: (EXPOSED, "") not in server.firing(), "the end of the alert", 90)
        training.end()


def test_a_growing_residual(tmp_path: Path):
    algorithm = {"name": "topk_sgd", "density": 0.01}
    with watched(tmp_path, algorithm) as (training, server):
        until(lambda: server.query("relaxcomm_residual_norm > 0"), "residuals", 60)
        training.tell("grow")
        until(lambda: {(RESIDUAL, str(rank)) for rank in range(3)} <= server.firing(), RESIDUAL, 150)
        training.untell("grow")
        until(lambda: RESIDUAL not in {n for n, _ in server.firing()}, "the end of the alert", 150)
        training.end()
