"""`relaxcomm train` with `membership: {elastic: true}`: workers are lost and join, and it ends well."""

import json
import os
import re
import signal
import sys
import urllib.request
from contextlib import suppress
from types import SimpleNamespace

import pytest

from benchmarks.ports import free_port
from relaxcomm import errors
from relaxcomm.cli import elastic_launcher, elastic_worker, worker_reports
from relaxcomm.cli.exit_codes import RunFailed
from relaxcomm.errors import CommunicationError
from tests.network_namespaces import hosts

pytestmark = pytest.mark.ranks

ELASTIC = ("--workers", "3", "--set", "membership={elastic: true}", "--set", "bucket_bytes=2000")


def options(workers=3, **more):
    """Those of an elastic run on 3 workers and 3 buckets; `more` is for the task."""
    task = json.dumps({"mine.job:make": more})
    return (*ELASTIC, "--workers", str(workers), "--set", f"task={task}", "--set", "output=out")


def result_of(folder, algorithm="local_sgd"):
    return json.loads((folder / "out" / f"{algorithm}.json").read_text())


def address_in(running):
    """What the run says on how to join it."""
    line = running.process.stderr.readline()
    assert re.fullmatch(r"relaxcomm: to add a worker: relaxcomm join 127\.0\.0\.1:\d+\n", line), line
    return line.split()[-1]


@pytest.mark.parametrize(
    "what",
    [
        "kill",
        pytest.param("die in evaluation", marks=pytest.mark.faults),
        pytest.param("quit", marks=pytest.mark.faults),
    ],
)
def test_the_others_go_on_without_the_first(start, folder, what):
    """Rank 0 ends, which shows the run and writes its result elsewhere; also with exit code 0 it has none."""
    result = start("train", "quick.yaml", *options(what=what, rank=0), "--max-restarts", "0").finish()
    assert (result.code, result.left_over) == (0, False), result.err
    how = "exit code 0" if what == "quit" else "SIGKILL"
    assert re.search(rf"relaxcomm: process \d+ ended: {how}; no other takes its place", result.err)
    record = result_of(folder)
    (change,) = record["changes"]
    assert (change["generation"], change["workers"], change["joined"]) == (1, 2, [])
    assert change["lost"]["0"].startswith("has ended without a message")
    assert f"2 ranks go on from step {change['step']}\n" in result.err
    assert record["workers"] == 2
    assert record["steps"] > 46 * 2 // 3, "an epoch is shared by two from then on"
    assert f"step {change['step']}: worker 0 has ended" in result.out
    assert re.search(r"local_sgd  step \d+/\d+  loss", result.err.split("go on from step")[1])


@pytest.mark.faults
@pytest.mark.parametrize(
    ("algorithm", "rank"), [("bsp", 0), ("local_sgd", 2), ("diloco", 1), ("gaussiank_sgd", 0)]
)
def test_another_takes_the_place_of_one_that_was_killed(start, folder, algorithm, rank):
    task = options(what="kill", rank=rank, epochs=60, pause=0.02)
    result = start(
        "train", "quick.yaml", "--algorithm", algorithm, "--set", "drift_guard={every_steps: 1}", *task
    ).finish()
    assert (result.code, result.left_over) == (0, False), result.err
    assert "another takes its place in 1 s, restart 1 of 3" in result.err
    record = result_of(folder, algorithm)
    lost, joined = record["changes"]
    assert (list(lost["lost"]), lost["workers"]) == ([str(rank)], 2)
    assert (joined["joined"], joined["workers"], record["workers"]) == ([3], 3, 3)
    assert (
        f"relaxcomm: worker 3 has joined as rank 2 of 3, {algorithm}, from step {joined['step']}"
        in result.err
    )
    assert record["measure"] > 0.85
    steps = [point["step"] for point in record["history"]]
    assert steps == sorted(steps)
    assert steps[-1] == record["steps"]


@pytest.mark.faults
def test_clients_are_played_by_another_that_takes_the_place(start, folder):
    fedavg = ("--set", "algorithm={name: fedavg, clients: 6, fraction: 0.5}")
    task = options(what="kill", rank=1, epochs=80, pause=0.02)
    result = start("train", "quick.yaml", *fedavg, *task).finish()
    assert (result.code, result.left_over) == (0, False), result.err
    record = result_of(folder, "fedavg")
    lost, joined = record["changes"]
    assert (list(lost["lost"]), joined["joined"], record["workers"]) == (["1"], [3], 3)
    assert record["measure"] > 0.85


@pytest.mark.faults
def test_a_worker_that_raises_is_told_of_and_begins_again(start, folder):
    result = start("train", "quick.yaml", *options(what="raise", epochs=40, pause=0.02)).finish()
    assert result.code == 0, result.err
    assert re.search(
        r"process \d+ ended: ValueError: the disk is full \(at .*; another takes its place", result.err
    )
    assert result_of(folder)["workers"] == 3


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
    assert "takes its place" not in result.err


@pytest.mark.faults
def test_one_more_joins_and_all_end_together(start, folder):
    """One joins three in the next test."""
    task = options(1, epochs=20, pause=0.02)
    running = start("train", "quick.yaml", *task)
    joining = start("join", address_in(running))
    joined, result = joining.finish(), running.finish()
    assert (joined.code, result.code) == (0, 0), joined.err + result.err
    assert joined.out == "".join(result.out.splitlines(keepends=True)[:2]), "both show the same result"
    record = result_of(folder)
    (change,) = record["changes"]
    assert (change["joined"], change["workers"], record["workers"]) == ([1], 2, 2)
    assert record["history"][0]["step"] < change["step"]


def ranks_at(port):
    """The numbers of the workers that `/sd` of one of them tells, if it does."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/sd", timeout=5) as answer:
        return [target["labels"]["rank"] for target in json.load(answer)]
    return []


@pytest.mark.faults
def test_one_that_joins_from_another_folder_finds_checkpoints_and_is_found(start, folder, tmp_path):
    """Rank 0 is killed, so that the next one tells where all show their metrics."""
    port = free_port(4)
    save = ("--set", "checkpoint={path: saved, every_steps: 20}", "--set", f"metrics={{port: {port}}}")
    task = options(what="kill", rank=0, epochs=60, pause=0.02)
    running = start("train", "quick.yaml", *task, *save, "--max-restarts", "0")
    joining = start(
        "join",
        address_in(running),
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )
    running.until(lambda: ranks_at(port + 1) == ["1", "2", "3"], "who is there now")
    joined, result = joining.finish(), running.finish()
    assert (joined.code, result.code) == (0, 0), joined.err + result.err
    assert list(tmp_path.iterdir()) == []
    assert max(path.name for path in (folder / "saved").iterdir()) >= "step-00000200"


@pytest.mark.faults
def test_a_worker_of_another_host_joins(folder):
    arguments = ["train", "quick.yaml", *options(epochs=60, pause=0.02)]
    with hosts(2) as (here, there):
        command = [sys.executable, "-m", "relaxcomm"]
        running = here.popen([*command, *arguments, "--address", f"{here.address}:29400"], {}, folder)
        next(line for line in running.stdout if "to add a worker" in line)
        joining = there.popen([*command, "join", f"{here.address}:29400"], {}, folder)
        said, joined = running.communicate(timeout=240)[0], joining.communicate(timeout=240)[0]
    assert (running.returncode, joining.returncode) == (0, 0), said + joined
    assert result_of(folder)["workers"] == 4


def succeed():
    """Work of one worker."""
    return os.environ["RANK"]


def fail():
    raise errors.ConfigError("this cannot be")


PHASES = ("--set", "algorithm.steps=16", "--set", "phases=[{after_steps: 10, algorithm: bsp}]")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["kill", pytest.param("die in switch", marks=pytest.mark.faults)])
def test_those_who_are_left_go_on_with_the_next_phase_and_others_join_it(start, folder, what):
    """The loss is noticed where all switch, and what joins has begun with another algorithm."""
    task = options(what=what, epochs=30, pause=0.02)
    result = start("train", "quick.yaml", "--algorithm", "local_sgd", *PHASES, *task).finish()
    assert (result.code, result.left_over) == (0, False), result.err
    record = result_of(folder)
    lost, joined = record["changes"]
    assert (list(lost["lost"]), lost["step"], record["workers"]) == (["1"], 10, 3)
    assert "2 ranks go on from step 10" in result.err
    assert f"3 ranks go on from step {joined['step']}" in result.err
    assert record["steps"] - record["synchronisations"] == 10, "bsp from then on"
    assert record["history"][-1]["step"] == record["steps"] > 200


@pytest.mark.faults
@pytest.mark.parametrize("what", ["sleep", "sleep in evaluation"])
def test_one_that_was_stopped_comes_back_where_the_others_are(start, folder, what):
    """In another epoch, after evaluations that it has missed."""
    membership = ("--set", "membership={elastic: true, grace_seconds: 2}")
    task = options(what=what, epochs=40, pause=0.02)
    result = start("train", "quick.yaml", "--algorithm", "bsp", *task, *membership).finish()
    assert (result.code, result.left_over) == (0, False), result.err
    assert "it asks to join them" in result.err
    record = result_of(folder, "bsp")
    lost, joined = record["changes"]
    assert (list(lost["lost"]), joined["joined"], record["workers"]) == (["1"], [3], 3)
    assert joined["step"] > lost["step"] + 46
    steps = [point["step"] for point in record["history"]]
    assert steps == sorted(steps)
    assert steps[-1] == record["steps"]


@pytest.mark.slow
def test_all_begin_again_if_one_ends_before_they_have_met(start, folder):
    """Nobody could admit another; the rest would wait until they gave up."""
    task = json.dumps({"mine.job:make": {"what": "die early"}})
    result = start("train", "quick.yaml", *ELASTIC, "--set", f"task={task}", "--set", "output=out").finish()
    assert (result.code, result.left_over) == (0, False), result.err
    (told,) = re.findall(r"process \d+ ended: .*", result.err)
    assert told.endswith("SIGKILL; the workers have not met yet: all begin again in 1 s, restart 1 of 3")
    record = result_of(folder)
    assert (record["workers"], record["changes"]) == (3, [])


@pytest.mark.slow
def test_nobody_waits_for_one_that_cannot_begin(start):
    task = json.dumps({"mine.job:make": {"what": "fail early"}})
    result = start("train", "quick.yaml", *ELASTIC, "--max-restarts", "1", "--set", f"task={task}").finish()
    assert (result.code, result.left_over) == (1, False)
    assert "all begin again in 1 s, restart 1 of 1" in result.err
    assert "relaxcomm: error: rank 1: OSError: no data here" in result.err
    assert "timeout_seconds" not in result.err


@pytest.mark.faults
def test_what_a_worker_returns_is_handed_over_and_what_it_raises_told(capfd):
    assert elastic_launcher.launch_elastic(succeed, 2, configuration={}) in ("0", "1")
    with pytest.raises(RunFailed, match="this cannot be") as caught:
        elastic_launcher.launch_elastic(fail, 2, configuration={})
    assert caught.value.bad_input
    assert "takes its place" not in capfd.readouterr().err


def test_the_first_failure_that_did_not_follow_from_another(monkeypatch, tmp_path):
    monkeypatch.setattr(worker_reports, "_STAY_SECONDS", 0.0)
    monkeypatch.setattr(elastic_launcher.elastic_store, "has_run", lambda store: True)
    processes = elastic_launcher.Processes(succeed, 3, "", tmp_path, {})
    launcher = elastic_launcher._Launcher(processes, None, restarts=3)
    workers = [elastic_launcher._Worker(rank, None) for rank in range(3)]

    def end(rank, life, exit_code, error=None):
        workers[rank].lives = life
        if error is not None:
            with pytest.raises(SystemExit), worker_reports.reporting(tmp_path, rank, life):
                raise error
        launcher._ended(workers[rank], SimpleNamespace(pid=1, exitcode=exit_code), workers)

    end(1, 0, 1, CommunicationError("rank 2 is gone"))
    assert launcher._cause is None
    end(2, 0, -signal.SIGKILL)
    end(0, 0, 3)
    end(2, 1, 1, CommunicationError("the run has ended"))
    end(1, 1, 1, ValueError("too late"))
    assert str(launcher._cause) == "rank 2 ended without a message: SIGKILL"
    launcher._cause = None
    end(1, 2, 1, ValueError("no such class"))
    assert str(launcher._cause).startswith("rank 1: ValueError: no such class")
    launcher._cause = None
    end(1, 3, 1, SystemExit(0))
    assert str(launcher._cause).startswith("rank 1: sys.exit(0) before the run was over (at ")
    launcher._cause = None
    end(2, 2, 0)
    assert (str(launcher._cause), launcher._done) == ("rank 2 ended without a message: exit code 0", None)
    elastic_worker.result_path(tmp_path, 2, 3).touch()
    end(2, 3, 0)
    assert launcher._done == (2, 3)


def test_pauses_grow_as_long_as_processes_do_not_last(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(elastic_launcher.time, "monotonic", lambda: now)
    launcher = elastic_launcher._Launcher(None, None, restarts=8)
    worker = elastic_launcher._Worker(0, None, began=now)
    pauses = []
    for lived in (5, 5, 59, 5, 5, 5, 90, 5):
        now += lived
        assert f"restart {worker.lives + 1} of 8" in launcher._plan_restart(worker)
        pauses.append(worker.due - now)
        worker.lives, worker.began = worker.lives + 1, now
    assert pauses == [1, 2, 4, 8, 16, 30, 1, 1]
    worker.due = None
    assert launcher._plan_restart(worker) == "; no other takes its place, after 8 restarts"
    assert worker.due is None
