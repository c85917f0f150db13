"""Real faults make a real Prometheus raise each alert, and their end takes it back; 30 times faster."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.metrics.server import Job, Prometheus, job, prometheus, until

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
        until(lambda: len(server.query("up == 1")) == 3, 60, "all ranks")
        yield training, server


def test_a_stopped_worker(tmp_path: Path):
    with watched(tmp_path, "bsp") as (training, server):
        until(lambda: server.query("relaxcomm_steps_total > 20"), 60, "steps")
        assert not {name for name, _ in server.firing()} & {STALLED, STANDS}
        training.processes[1].send_signal(signal.SIGSTOP)
        until(lambda: server.firing() >= {(STALLED, "1"), (STANDS, "0"), (STANDS, "2")}, 60, STALLED)
        assert {rank for name, rank in server.firing() if name == STALLED} == {"1"}
        training.processes[1].send_signal(signal.SIGCONT)
        until(lambda: not {n for n, _ in server.firing()} & {STALLED, STANDS}, 60, "the end of the alerts")
        training.end()


def test_a_perturbed_replica(tmp_path: Path):
    algorithm = {"name": "local_sgd", "steps": 4}
    with watched(tmp_path, algorithm) as (training, server):
        until(lambda: server.query("relaxcomm:replica_distance:ratio < 0.1"), 60, "small distances")
        assert DRIFT not in {name for name, _ in server.firing()}
        training.tell("perturb")
        until(lambda: (DRIFT, "2") in server.firing(), 60, DRIFT)
        training.untell("perturb")
        until(lambda: DRIFT not in {n for n, _ in server.firing()}, 60, "the end of the alert")
        training.end()


def test_no_synchronisation_and_a_slow_worker(tmp_path: Path):
    algorithm = {"name": "selsync", "threshold": 0.5, "window_steps": 1, "smoothing": 0.5}
    with watched(tmp_path, algorithm) as (training, server):
        training.tell("loud")  # gradients jump, so the workers synchronise
        synchronised = 'relaxcomm_steps_total{outcome="synchronised"} > 10'
        until(lambda: server.query(synchronised), 60, "synchronisations")
        assert QUIET not in {name for name, _ in server.firing()}
        training.untell("loud")
        until(lambda: {(QUIET, str(rank)) for rank in range(3)} <= server.firing(), 120, QUIET)
        training.tell("loud")
        until(lambda: QUIET not in {n for n, _ in server.firing()}, 60, "the end of the alert")
        assert (EXPOSED, "") not in server.firing()
        training.tell("slow")  # the others wait for it
        until(lambda: (EXPOSED, "") in server.firing(), 90, EXPOSED)
        training.untell("slow")
        until(lambda: (EXPOSED, "") not in server.firing(), 90, "the end of the alert")
        training.end()


def test_a_growing_residual(tmp_path: Path):
    algorithm = {"name": "topk_sgd", "density": 0.01}
    with watched(tmp_path, algorithm) as (training, server):
        until(lambda: server.query("relaxcomm_residual_norm > 0"), 60, "residuals")
        training.tell("grow")
        until(lambda: {(RESIDUAL, str(rank)) for rank in range(3)} <= server.firing(), 150, RESIDUAL)
        training.untell("grow")
        until(lambda: RESIDUAL not in {n for n, _ in server.firing()}, 150, "the end of the alert")
        training.end()
