"""`checkpoint:` in a configuration: a run that was ended starts again and simply goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import relaxcomm
from relaxcomm import CommunicationError, ConfigError, NonFiniteError, RankLostError
from relaxcomm.checkpoint import periodic, writing
from relaxcomm.checkpoint.manifest import checkpoints
from relaxcomm.checkpoint.periodic import Checkpoints
from relaxcomm.config import CheckpointConfig, load
from tests.engine.harness import World, in_process, values
from tests.models import CASES, take_step, trainable

JOB = """
import os, signal
import torch
from relaxcomm import Task

def make(seed, end_at=None, epochs=4):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    calls = [0]

    def loss(model, batch):
        calls[0] += 1
        once = end_at is not None and not os.path.exists("ended")
        if once and calls[0] == end_at and os.environ.get("RANK", "1") == "1":
            open("ended", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return (model(batch[0]).squeeze(-1) - batch[0].sum(1)).square().mean()

    x = torch.randn(96, 4)
    return Task(
        model=model, optimizer=optimizer, train_data=torch.utils.data.TensorDataset(x), loss=loss,
        epochs=epochs,
        evaluate=lambda model: float(sum(p.double().abs().sum() for p in model.parameters())),
        batch_size=8, evaluate_every_steps=5,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.7),
    )
"""
CONFIG = """
algorithm: {name: local_sgd, steps: 4}
task: %s
output: %s
checkpoint: {path: saved, every_steps: 3}
"""


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "-m")


def result_of(folder: Path, task: str, output: str, *more: str, launcher=()) -> tuple[dict, str]:
    """Train, under a launcher or with `more` arguments; the result, and what was said beside its table."""
    (folder / "resumable.py").write_text(JOB)
    (folder / f"{output}.yaml").write_text(CONFIG % (task, output))
    command = [sys.executable, "-m", *launcher, "relaxcomm", "train", f"{output}.yaml", *more]
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["algorithm", "local_sgd", "result:"]
    return json.loads(next((folder / output).glob("*.json")).read_text()), done.stderr


@pytest.mark.slow
@pytest.mark.ranks
def test_a_killed_run_starts_again_and_ends_as_if_nothing_had_been(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole, _ = result_of(tmp_path / "whole", "resumable:make", "out", "--workers=2")
    killed = "{'resumable:make': {end_at: 17}}"
    found, said = result_of(tmp_path / "killed", killed, "out", launcher=TORCHRUN)
    assert "relaxcomm: goes on from saved/step-000000" in said
    assert found["steps"] == whole["steps"] == 24
    points = [[(one["step"], one["measure"]) for one in each["history"]] for each in (whole, found)]
    assert points[0] == points[1]  # the evaluations before the kill, too
    assert len(points[0]) == 5
    more, said = result_of(tmp_path / "whole", "{'resumable:make': {epochs: 5}}", "more", "--workers=3")
    assert "relaxcomm: goes on from saved/step-00000024" in said
    assert more["steps"] == 24 + 96 // 8 // 3  # the fifth epoch, with three workers
    assert [(one["step"], one["measure"]) for one in more["history"]][:4] == points[0][:4]


def train(world: World, folder: Path, steps: int, settings: CheckpointConfig):
    """Train as `relaxcomm train` does, with checkpoints now and then."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    with world.attach(model, optimizer, {"algorithm": "local_sgd"}) as engine:
        saving = Checkpoints(engine, settings, {})
        saving.resume()
        for step in range(int(engine.statistics["steps"]), steps):
            take_step(case.local_loss(model, step, world.rank), optimizer)
            saving.step()
        saving.finish()
        cost = engine.statistics.latest.get("checkpoint_seconds")
        engine.close(average=False)
    return values(model), cost


def test_every_so_many_steps(tmp_path):
    settings = CheckpointConfig(path=str(tmp_path), every_steps=4, keep=3)
    whole = in_process(train, 3, tmp_path, 15, settings)
    assert [one.manifest.step for one in checkpoints(tmp_path)] == [4, 8, 12]
    resumed = in_process(train, 3, tmp_path, 15, settings)  # the last three steps anew
    assert [one.manifest.step for one in checkpoints(tmp_path)] == [4, 8, 12]
    for (expected, cost), (found, _) in zip(whole, resumed, strict=True):
        assert (found == expected).all()
        assert cost > 0


def test_every_so_many_seconds(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(periodic.time, "monotonic", lambda: now[0])

    def program(world):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with world.attach(model, optimizer, "bsp") as engine:
            saving = Checkpoints(engine, CheckpointConfig(path=str(tmp_path), every_seconds=30.0, keep=9), {})
            saving.resume()
            for _ in range(100):
                now[0] += 1.0 if world.rank == 0 else 0.0  # a second a step
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                saving.step()
            saving.finish()

    in_process(program, 1)
    steps = [one.manifest.step for one in checkpoints(tmp_path)]
    assert len(steps) == 3
    assert all(28 <= after - before <= 33 for before, after in zip([0, *steps], steps, strict=False))


def test_training_goes_on_when_a_checkpoint_fails(tmp_path, monkeypatch, capsys):
    write = writing.Writing.write

    def full_once(self, plans):
        if "step-00000004" in str(self._writer.path):
            raise OSError(28, "No space left on device")
        return write(self, plans)

    monkeypatch.setattr(writing.Writing, "write", full_once)
    settings = CheckpointConfig(path=str(tmp_path), every_steps=4)
    in_process(train, 2, tmp_path, 9, settings)
    assert [one.manifest.step for one in checkpoints(tmp_path)] == [8]
    assert "No space left on device; older ones are untouched; training goes on" in capsys.readouterr().err


def test_nan_in_the_model_ends_the_run_and_leaves_the_older_checkpoints(tmp_path):
    def program(world):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with world.attach(model, optimizer, "bsp") as engine:
            saving = Checkpoints(engine, CheckpointConfig(path=str(tmp_path), every_steps=2), {})
            for step in range(99):
                take_step(model(torch.full((1, 1), torch.nan if step == 4 else 1.0)).sum(), optimizer)
                saving.step()

    with pytest.raises(NonFiniteError, match="step 6: NaN or infinity in parameter"):
        in_process(program, 2)
    assert [one.manifest.step for one in checkpoints(tmp_path)] == [2, 4]


@pytest.mark.parametrize(
    ("at", "error", "told"),
    [
        ("write", ValueError("mine"), "mine"),  # no disk said so
        ("meet", CommunicationError("rank 0 is somewhere else"), "rank 0 is somewhere else"),
        ("meet", RankLostError("rank 1 has ended"), "rank 1 has ended"),
    ],
)
def test_what_is_no_failing_disk_ends_the_run(tmp_path, monkeypatch, at, error, told):
    def fail(*args):
        raise error

    with relaxcomm.attach(torch.nn.Linear(1, 1), None, "bsp") as engine:
        saving = Checkpoints(engine, CheckpointConfig(path=str(tmp_path), every_steps=1), {})
        monkeypatch.setattr(writing.Writing if at == "write" else type(engine.world), at, fail)
        saving.save()  # the next one hears of it
        with pytest.raises(type(error), match=told):
            saving.save()
        monkeypatch.undo()
        saving.finish()  # no thread goes on writing beside the next test


def test_a_disk_that_torch_speaks_for(tmp_path, monkeypatch, capsys):
    """A full disk is an OSError of Python's, behind a RuntimeError of torch's."""

    write, calls = writing.Writing.write, []

    def full_once(*args):
        calls.append(args)
        if len(calls) > 1:
            return write(*args)
        try:
            raise OSError(28, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 704 vs 598")

    with relaxcomm.attach(torch.nn.Linear(1, 1), None, "bsp") as engine:
        saving = Checkpoints(engine, CheckpointConfig(path=str(tmp_path), every_steps=1), {})
        monkeypatch.setattr(writing.Writing, "write", full_once)
        saving.save()
        saving.save()
        saving.finish()
    assert "No space left on device; older ones are untouched; training goes on" in capsys.readouterr().err
    assert len(checkpoints(tmp_path)) == 1


@pytest.mark.parametrize("section", ["{path: a}", "{path: a, every_steps: 1, every_seconds: 2.0}"])
def test_one_interval_is_given(section):
    with pytest.raises(ConfigError, match="give just one of them"):
        load({"algorithm": "bsp", "checkpoint": relaxcomm.config.parse_yaml(section)})


def test_a_script_is_told_to_save_itself():
    with (
        pytest.warns(relaxcomm.ConfigWarning, match=r"relaxcomm\.checkpoint\.load\(engine, 'a'\)"),
        relaxcomm.attach(
            torch.nn.Linear(1, 1), None, {"algorithm": "bsp", "checkpoint": {"path": "a", "every_steps": 1}}
        ),
    ):
        pass
