"""`relaxcomm train` in real processes: on local workers, under torchrun, and when a worker fails."""

import json
import os
import signal

import pytest

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
    ("what", "message"),
    [
        ("raise", "rank 1: ValueError: the disk is full (at "),
        pytest.param("exit", "rank 1", marks=pytest.mark.slow),
    ],  # the second is known by its absence
)
def test_a_failing_worker_ends_all_with_one_message(start, what, message):
    result = start("train", "quick.yaml", "--set", f"task={{'mine.job:make': {{what: {what}}}}}").finish()
    assert (result.code, result.left_over) == (1, False)
    lines = [line for line in result.err.splitlines() if not line.startswith("local_sgd  step")]
    assert lines[0].startswith("relaxcomm: error: ")
    assert message in lines[0]
    assert lines[1:] == ["relaxcomm: --traceback shows where it happened"]


def test_interrupting_ends_all_workers(start):
    running = start("train", "quick.yaml", "--set", "task={'mine.job:make': {what: hang}}")
    # The configuration is small: by now either the workers are on their way, or this line says why not.
    assert wait_for_workers(running.process.pid) >= 2
    os.killpg(running.process.pid, signal.SIGINT)
    result = running.finish()
    assert (result.code, result.left_over) == (130, False)
    assert result.err.splitlines()[-1] == "relaxcomm: interrupted; all workers are ended"
    assert "Traceback" not in result.err


def wait_for_workers(group: int) -> int:
    """How many processes of the group have opened the network, waiting until two have."""
    import time

    for _ in range(300):
        connected = sum(has_sockets(pid) for pid in members(group) if pid != group)
        if connected >= 2:
            return connected
        time.sleep(0.1)
    return connected


def members(group: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.getpgid(int(entry)) == group:
                    found.append(int(entry))
            except ProcessLookupError:
                continue
    return found


def has_sockets(pid: int) -> bool:
    try:
        return any("socket" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, PermissionError):
        return False


def test_under_torchrun(start, torchrun):
    result = start("train", "quick.yaml", launcher=torchrun).finish()
    assert (result.code, result.left_over) == (0, False), result.err
    assert [line.split()[0] for line in result.out.splitlines()] == ["algorithm", "local_sgd"]


def test_another_number_of_workers_than_torchrun_started_is_refused(start, torchrun):
    result = start("train", "quick.yaml", "--workers", "3", launcher=torchrun).finish()
    assert result.code != 0
    assert "workers is 3, but the launcher started 2 (WORLD_SIZE)" in result.err
