"""A worker dies, stops or fails: the others say so within the time limit, and their processes end."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.ranks import PATIENCE_SECONDS, launch_script

pytestmark = pytest.mark.ranks

SCRIPT = """
import os, signal, subprocess, sys, time
import torch, relaxcomm

ALGORITHM, FAULT, AT, LIMIT = {algorithm!r}, {fault!r}, {at!r}, {limit}
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 11), torch.nn.Tanh(), torch.nn.Linear(11, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
config = {{"algorithm": ALGORITHM, "timeout_seconds": LIMIT, "bucket_bytes": 200}}

def fault():
    if FAULT == "exit":
        os._exit(7)
    if FAULT == "raise":
        raise KeyError("the user's own mistake")
    if FAULT == "pause":
        subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {{os.getpid()}}"])
    os.kill(os.getpid(), signal.SIGSTOP)

if AT == "backward" and rank == 2:
    model[0].weight.register_hook(lambda g: fault() if step == 5 else None)
with relaxcomm.attach(model, optimizer, config) as engine:
    for step in range(12):
        draw = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(8, 6, generator=draw)
        (model(x) - x[:, :4]).square().mean().backward()
        if AT == "step" and rank == 2 and step == 5:
            fault()
        optimizer.step()
        optimizer.zero_grad()
print(f"sum {{torch.nn.utils.parameters_to_vector(model.parameters()).double().sum().item():.10f}}")
"""
DELAYED = {"rules": [{"payload": "parameters", "exchange": "gossip", "delay": 1}]}
ALGORITHMS = {
    "bsp": "bsp",
    "selsync": "selsync",
    "ssp": {"name": "ssp", "staleness": 1},
    "async": "async_model_average",
    "decoupled": {"name": "decoupled_diloco", "steps": 2, "quorum": 2, "grace_seconds": 0.1},
    "delayed": DELAYED,
}


def run(name, fault, at, **options):
    limit = 8 if fault == "stop" else 60  # which only a rank that is silent for good makes others wait for
    source = SCRIPT.format(algorithm=ALGORITHMS[name], fault=fault, at=at, limit=limit)
    return launch_script(source, 3, **options)


def check_that_others_noticed(done):
    for process in done:
        assert process.returncode not in (0, None), process.stdout + process.stderr
        errors = re.findall(r"relaxcomm\.errors\.RankLostError: (.*)", process.stderr)
        assert errors, process.stderr
        assert re.search(r"rank [01] at ", errors[-1]), errors


def cases(*quick):
    """All algorithms; those that are not named here take part in the slow tests alone."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS]


@pytest.mark.parametrize("at", ["step", pytest.param("backward", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", cases("bsp", "ssp"))
def test_a_rank_that_dies(name, at):
    done = run(name, "exit", at)
    assert done[2].returncode == 7
    check_that_others_noticed(done[:2])


@pytest.mark.parametrize("name", cases("selsync"))
def test_a_rank_that_raises_names_its_error_to_the_others(name):
    done = run(name, "raise", "step")
    assert "KeyError" in done[2].stderr
    check_that_others_noticed(done[:2])
    assert any("KeyError" in process.stderr for process in done[:2])


@pytest.mark.parametrize("name", cases("ssp"))
def test_a_rank_that_is_stopped_for_good(name):
    done = run(name, "stop", "step", never_end={2})
    check_that_others_noticed(done)
    for process in done:
        assert "timeout_seconds" in process.stderr or "rank" in process.stderr


@pytest.mark.parametrize(
    "name",
    ["delayed", pytest.param("bsp", marks=pytest.mark.slow), pytest.param("selsync", marks=pytest.mark.slow)],
)
def test_a_rank_that_pauses_holds_up_the_others_and_changes_nothing(name):
    paused = run(name, "pause", "step")
    undisturbed = run(name, "none", "never")
    assert [process.returncode for process in paused] == [0, 0, 0], [p.stderr for p in paused]
    sums = {process.stdout.split()[-1] for process in (*paused, *undisturbed)}
    assert len(sums) == 1


def test_a_worker_of_the_command_line_that_dies(tmp_path):
    (tmp_path / "job.py").write_text(
        """
import os, torch
from relaxcomm.tasks import Task

def make(seed):
    model = torch.nn.Linear(4, 1)
    def loss(model, batch):
        if os.environ["RANK"] == "1":
            os._exit(9)
        return model(batch[0]).square().mean()
    return Task(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                train_data=torch.utils.data.TensorDataset(torch.randn(64, 4)), loss=loss,
                evaluate=lambda model: 0.0, epochs=1)
"""
    )
    (tmp_path / "config.yaml").write_text("algorithm: bsp\ntask: job:make\nworkers: 2\ntimeout_seconds: 60\n")
    command = [sys.executable, "-m", "relaxcomm", "train", "config.yaml"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "worker 1" in done.stderr or "rank 1" in done.stderr
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert not left.stdout
