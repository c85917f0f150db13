"""`relaxcomm train` with `membership: {elastic: true}`: workers are lost, and it ends well."""

import json
import os
import re
import signal

import pytest

from relaxcomm import errors
from relaxcomm.cli import elastic_launcher
from relaxcomm.cli.exit_codes import RunFailed

pytestmark = pytest.mark.ranks

ELASTIC = ("--workers", "3", "--set", "membership={elastic: true}", "--set", "bucket_bytes=2000")


def options(**more):
    """Those of an elastic run on 3 workers and 3 buckets; `more` is for the task."""
    return (*ELASTIC, "--set", f"task={json.dumps({'mine.job:make': more})}", "--set", "output=out")


def result_of(folder, algorithm="local_sgd"):
    return json.loads((folder / "out" / f"{algorithm}.json").read_text())


def test_the_others_go_on_without_the_first(start, folder):
    """Rank 0 is killed, which shows the run and writes its result elsewhere."""
    result = start("train", "quick.yaml", *options(what="kill", rank=0)).finish()
    assert (result.code, result.left_over) == (0, False), result.err
    assert re.search(r"relaxcomm: process \d+ ended: SIGKILL\n", result.err)
    record = result_of(folder)
    (change,) = record["changes"]
    assert (change["generation"], change["workers"]) == (1, 2)
    assert change["lost"]["0"].startswith("has ended without a message")
    assert 4 <= change["step"] <= 8
    assert record["workers"] == 2
    assert record["steps"] > 46 * 2 // 3, "an epoch is shared by two from then on"
    assert f"step {change['step']}: worker 0 has ended" in result.out
    assert re.search(r"local_sgd  step \d+/\d+  loss", result.err.split("go on from step")[1])


@pytest.mark.faults
@pytest.mark.parametrize(
    ("algorithm", "rank"), [("bsp", 0), ("local_sgd", 2), ("diloco", 1), ("gaussiank_sgd", 0)]
)
def test_the_others_come_to_a_good_end(start, folder, algorithm, rank):
    task = options(what="kill", rank=rank, epochs=20)
    guard = (
        "--set",
        "drift_guard={every_steps: 1}",
        "--set",
        f"checkpoint={{path: {algorithm}, every_steps: 7}}",
    )
    result = start("train", "quick.yaml", "--algorithm", algorithm, *guard, *task).finish()
    assert (result.code, result.left_over) == (0, False), result.err
    record = result_of(folder, algorithm)
    (lost,) = record["changes"]
    assert (list(lost["lost"]), lost["workers"], record["workers"]) == ([str(rank)], 2, 2)
    assert record["measure"] > 0.9
    steps = [point["step"] for point in record["history"]]
    assert steps == sorted(steps)
    assert steps[-1] == record["steps"]
    newest = sorted((folder / algorithm).glob("step-*"))[-1]
    assert int(newest.name.split("-")[1]) > record["steps"] - 8, "checkpoints are made by those that are left"


@pytest.mark.faults
def test_a_worker_that_raises_is_told_of(start, folder):
    result = start("train", "quick.yaml", *options(what="raise")).finish()
    assert result.code == 0, result.err
    assert re.search(r"process \d+ ended: ValueError: the disk is full \(at ", result.err)
    assert result_of(folder)["changes"][0]["lost"] == {"1": "failed: ValueError: the disk is full"}


@pytest.mark.faults
def test_the_message_of_the_first_failure_when_nobody_comes_to_the_end(start):
    result = start("train", "quick.yaml", *ELASTIC, "--set", "topology={edge_list: {path: nowhere}}").finish()
    assert (result.code, result.left_over) == (2, False), result.err
    task = options(what="nan")
    result = start("train", "quick.yaml", "--algorithm", "bsp", *task).finish()
    assert (result.code, result.left_over) == (1, False), result.err
    assert "NaN or infinity" in result.err.splitlines()[-2]


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all(start, folder, number):
    (folder / "hangs").unlink(missing_ok=True)
    running = start("train", "quick.yaml", *options(what="hang"))
    running.until((folder / "hangs").exists, "a worker that hangs")
    os.kill(running.process.pid, number)
    result = running.finish()
    assert (result.code, result.left_over) == (128 + number, False)
    assert result.err.splitlines()[-1] == "relaxcomm: interrupted; all workers are ended"


def succeed():
    """Work of one worker."""
    return os.environ["RANK"]


def fail():
    raise errors.ConfigError("this cannot be")


@pytest.mark.faults
def test_what_a_worker_returns_is_handed_over_and_what_it_raises_told():
    assert elastic_launcher.launch_elastic(succeed, 2) in ("0", "1")
    with pytest.raises(RunFailed, match="this cannot be") as caught:
        elastic_launcher.launch_elastic(fail, 2)
    assert caught.value.bad_input
