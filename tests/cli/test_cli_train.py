"""`relaxcomm train` in real processes: on local workers, under torchrun, and when a worker fails."""

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relaxcomm.cli.app import app

pytestmark = pytest.mark.ranks


def test_own_task_trains_and_evaluations_are_not_counted(start, folder):
    arguments = ("--algorithm", "local_sgd", "--set", "algorithm.steps=1000", "--set", "output=out")
    result = start(
        "train", "quick.yaml", *arguments, "--workers", "2", "--set", "task=mine.job:make"
    ).finish()
    assert (result.code, result.left_over) == (0, False), result.err
    header, row, written = result.out.splitlines()
    assert header.split()[:2] == ["algorithm", "accuracy"]
    assert row.split()[0] == "local_sgd"
    assert row.endswith("never exchanged"), "the averages of evaluations are no saving"
    for words in ("will never exchange in 46 steps", "has never exchanged in 46 steps"):
        assert result.err.count(f"relaxcomm: local_sgd {words}: it exchanges by every(steps=1000)") == 1
    assert written == "result: out/local_sgd.json"
    assert "step 46/46" in result.err
    assert "Warning" not in result.err
    record = json.loads((folder / "out" / "local_sgd.json").read_text())
    assert (record["workers"], record["steps"], record["task"]) == (2, 46, "mine.job:make")
    in_run = {point["bytes_sent"] for point in record["history"][:-1]}
    assert len(record["history"]) == 3
    assert len(in_run) == 1, "nothing but evaluations communicated between these"
    assert record["configuration"]["seed"] == 0


@pytest.mark.parametrize(
    ("what", "message", "advice"),
    [
        ("raise", "rank 1: ValueError: the disk is full (at ", ["--traceback shows where it happened"]),
        pytest.param("exit", "rank 1", [], marks=pytest.mark.slow),
    ],  # the second is known by its absence, which has no traceback
)
def test_a_failing_worker_ends_all_with_one_message(start, what, message, advice):
    result = start("train", "quick.yaml", "--set", f"task={{'mine.job:make': {{what: {what}}}}}").finish()
    assert (result.code, result.left_over) == (1, False)
    lines = [line for line in result.err.splitlines() if not line.startswith("local_sgd  step")]
    assert lines[0].startswith("relaxcomm: error: ")
    assert message in lines[0]
    assert lines[1:] == [f"relaxcomm: {line}" for line in advice]


@pytest.mark.slow
def test_nan_on_one_worker_is_no_success(start):
    """Nothing is exchanged in 1000 steps, so it is the average for an evaluation that comes upon it."""
    arguments = ("--algorithm", "local_sgd", "--set", "algorithm.steps=1000")
    result = start("train", "quick.yaml", *arguments, "--set", "task={'mine.job:make': {what: nan}}").finish()
    assert (result.code, result.left_over) == (1, False)
    line = next(line for line in result.err.splitlines() if "error" in line)
    assert line.startswith("relaxcomm: error: rank ")
    assert "NaN or infinity in parameter" in line
    assert "on rank 1;" in line
    assert "local_sgd" not in result.out, "there is no result"


HANG = ("train", "quick.yaml", "--set", "task={'mine.job:make': {what: hang}}")


@pytest.mark.parametrize("when", [pytest.param("workers start", marks=pytest.mark.slow), "workers train"])
def test_interrupting_ends_all_workers(start, folder, when):
    (folder / "hangs").unlink(missing_ok=True)
    running = start(*HANG)
    if when == "workers train":
        running.until((folder / "hangs").exists, "a worker that hangs")
    else:
        running.until(lambda: starting(running), "a worker")
    os.killpg(running.process.pid, signal.SIGINT)
    result = running.finish()
    assert (result.code, result.left_over) == (130, False)
    assert result.err.splitlines()[-1] == "relaxcomm: interrupted; all workers are ended"
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_an_interrupt_that_reaches_the_workers_first_is_no_failure(start, folder):
    (folder / "hangs").unlink(missing_ok=True)
    running = start(*HANG)
    running.until((folder / "hangs").exists, "a worker that hangs")
    os.kill(starting(running)[-1], signal.SIGINT)
    result = running.finish()
    assert (result.code, result.left_over) == (130, False)
    assert result.err.splitlines()[-1] == "relaxcomm: interrupted; all workers are ended"


@pytest.mark.slow
def test_a_signal_before_there_are_workers_ends_all_in_order(start):
    running = start(*HANG)
    running.until(
        lambda: [pid for pid in running.members() if holds(pid, "cmdline", "forkserver")],
        "what forks workers",
    )
    os.kill(running.process.pid, signal.SIGTERM)
    result = running.finish()
    assert (result.code, result.left_over) == (143, False)
    assert result.err.splitlines()[-1] == "relaxcomm: interrupted; all workers are ended"


@pytest.mark.slow
def test_workers_that_start_end_when_their_launcher_is_killed(start):
    running = start(*HANG)
    running.until(lambda: starting(running), "a worker")
    running.process.kill()
    assert not running.left_over()


def starting(running):
    """The process that loads PyTorch for the workers, and they."""
    return [
        pid
        for pid in running.members()
        if holds(pid, "cmdline", "forkserver") and holds(pid, "maps", "libtorch")
    ]


def holds(pid, file, text):
    """Whether there is a text in a file about a process, which may have ended."""
    try:
        return text in Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return False


@pytest.mark.slow  # tests/checkpoint/test_periodic.py kills such a run, which then goes on
def test_under_torchrun(start, torchrun):
    result = start("train", "quick.yaml", launcher=torchrun).finish()
    assert (result.code, result.left_over) == (0, False), result.err
    assert [line.split()[0] for line in result.out.splitlines()] == ["algorithm", "local_sgd"]


def test_another_number_of_workers_than_torchrun_started_is_refused(folder, monkeypatch):
    """By each on its own, before it meets others."""
    monkeypatch.chdir(folder)
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    monkeypatch.setattr(
        os, "environ", {**os.environ, **place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    )
    result = CliRunner().invoke(app, ["train", "quick.yaml", "--workers", "3"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "workers is 3, but this run has 2; leave workers out" in result.stderr
