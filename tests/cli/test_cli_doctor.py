"""`relaxcomm doctor`: what it prints and its exit code."""

import time
from functools import partial

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from relaxcomm.cli import doctor, signals
from relaxcomm.cli.app import app
from relaxcomm.cli.exit_codes import RunFailed
from relaxcomm.cli.launcher import launch
from relaxcomm.doctor import machine
from relaxcomm.doctor.diagnosis import Finding

LONG = "a long text that does not fit into a narrow window by any means"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str):
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "40"})


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warning", 0), ("problem", 1)])
def test_plain_lines_and_exit_code(level, code, monkeypatch):
    monkeypatch.setattr(machine, "findings", lambda workers: [Finding("thing", level, LONG, "mend it")])
    done = run()
    assert (done.exit_code, done.stderr) == (code, "")
    assert f"thing  {level}: {LONG}; mend it" in done.stdout.splitlines()


def test_a_file_says_how_many_workers_share_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "findings", lambda workers: [Finding("cores", "ok", f"for {workers}", "")])
    monkeypatch.setattr(doctor, "launch", lambda *_, **__: [Finding("links", "ok", "looked at", "")])
    (tmp_path / "run.yaml").write_text("algorithm: bsp\nworkers: 7\n")
    said = {workers: run(str(tmp_path / "run.yaml"), *workers).stdout for workers in [(), ("--workers", "3")]}
    assert "cores  ok: for 7" in said[()]
    assert "links" not in said[()]  # nobody was started
    assert "cores  ok: for 3" in said["--workers", "3"]


def test_on_a_terminal_it_is_a_table_with_a_sum(monkeypatch, capsys):
    console = Console(force_terminal=True, width=60, color_system=None)
    monkeypatch.setattr(doctor, "Console", lambda: console)
    doctor.show([Finding("one", "problem", LONG, "mend [it]"), Finding("two", "ok", "fine")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].split()[:5] == ["problem", "one", "a", "long", "text"]
    assert lines[2].strip() == "→ mend [it]"
    assert lines[-1] == "1 problem, 0 warnings"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_broken_environment_is_a_problem_and_nobody_is_waited_for(rank, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = run()
    assert done.exit_code == 1
    assert "environment  problem: a launcher sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT" in done.stdout


def test_a_port_that_cannot_be_is_a_problem(monkeypatch):
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "99999"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = run()
    assert (done.exit_code, done.stderr) == (1, "")
    assert "MASTER_PORT is '99999'; it is a whole number from 1 to 65535" in done.stdout


def test_workers_under_a_launcher_are_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = run("--workers", "2")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "under torchrun or srun leave it out" in done.stderr


@pytest.mark.ranks
def test_local_workers(start):
    done = start("doctor", "--workers", "2").finish()
    assert (done.code, done.err, done.left_over) == (0, "", False)
    names = [line.split("  ")[0] for line in done.out.splitlines()]
    assert names[0] == "relaxcomm"
    assert names[-3:] == ["workers", "latency", "bandwidth"]


def test_more_workers_than_memory_holds_are_refused_at_once(monkeypatch):
    memory = psutil.virtual_memory()._replace(available=2_000_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    begun = time.monotonic()
    done = run("--workers", "500", "--timeout", "3")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "500 workers need at least 75 GB of memory" in done.stderr
    assert "this machine has 2 GB left; start 13 at most" in done.stderr
    assert time.monotonic() - begun < 10


# The signal may fall between the making of the fork server's socket and the `with` that closes it.
@pytest.mark.filterwarnings("ignore:.*<socket.socket fd:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.ranks
def test_workers_that_begin_too_late_end_the_command_and_leave_nothing_behind():
    launch(int, 2)  # imports what a first launch needs: the signal finds no file half read
    before, begun = signals._workers(), time.monotonic()
    with pytest.raises(RunFailed, match=r"only 0 of 2 workers began within 0\.001 s"):
        launch(partial(time.sleep, 100), 2, begin_seconds=0.001)
    assert time.monotonic() - begun < 30
    assert signals._workers() <= before
