"""`relaxcomm train` as tasks of srun's, and in a shell of Slurm's that is none of them."""

import os

import pytest
from typer.testing import CliRunner

from benchmarks.ports import free_port
from relaxcomm.cli.app import app
from tests.slurm_variables import in_batch_script, in_task


@pytest.fixture
def srun(start):
    """Start a command as two tasks; how they ended."""

    def started(*arguments, **changes):
        port = str(free_port())
        tasks = [
            start(*arguments, env=in_task(rank, 2) | {"MASTER_PORT": port} | changes) for rank in range(2)
        ]
        return [one.finish() for one in tasks]

    return started


@pytest.mark.slow
def test_the_tasks_train_together(srun):
    first, second = srun("train", "quick.yaml")
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert [line.split()[0] for line in first.out.splitlines()] == ["algorithm", "local_sgd"]
    assert second.out == ""


@pytest.fixture
def refused(folder, monkeypatch):
    """What each of two tasks says that refuses a command; in this process, since it meets nobody before."""
    monkeypatch.chdir(folder)
    own = dict(os.environ)

    def ended(*arguments, **changes):
        for rank in range(2):
            monkeypatch.setattr(os, "environ", {**own, **in_task(rank, 2), **changes})
            found = CliRunner().invoke(app, arguments)
            assert (found.exit_code, found.stdout) == (2, "")
            yield found.stderr

    return ended


def test_another_number_of_workers_than_tasks_is_refused(refused):
    for rank, error in enumerate(refused("train", "quick.yaml", "--workers", "4")):
        assert f"rank {rank}: workers is 4, but this run has 2" in error


def test_what_starts_workers_itself_is_refused(refused):
    for error in refused("compare", "quick.yaml", "--algorithms", "bsp,local_sgd"):
        assert "call it without torchrun, srun or mpirun" in error


def test_variables_that_contradict_each_other_are_refused(refused):
    for error in refused("train", "quick.yaml", WORLD_SIZE="4"):
        assert "relaxcomm: error: WORLD_SIZE is '4', but srun says 2" in error


@pytest.mark.slow
def test_a_batch_script_starts_local_workers_and_says_so(start):
    ended = start("train", "quick.yaml", "--workers", "2", env=in_batch_script(8, nodes=2)).finish()
    assert ended.code == 0, ended.err
    assert "relaxcomm: on this host alone, workers: 2. Slurm has allocated 8 tasks" in ended.err


@pytest.mark.slow
def test_the_doctor_looks_at_the_links_between_tasks(srun):
    first, second = srun("doctor", "--timeout", "60")
    assert "workers  ok: rank 0 on " in first.out, first.out + first.err
    assert "latency  ok: gloo" in first.out
    assert second.out == ""
