"""`relaxcomm join`: what is said where there is no run to join, and a script of the user's own that joins."""

import json
import os
import socket
import sys
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.ports import free_port
from relaxcomm import ConfigError
from relaxcomm.cli import invitation
from relaxcomm.cli.app import app
from relaxcomm.cli.invitation import listen
from relaxcomm.network import elastic_store
from tests.faults.served import Liar
from tests.ranks import launch_script


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.fixture
def run():
    """A store in which a run says that it trains, and its address."""
    store, address = listen("127.0.0.1")
    invitation.invite(store, {"algorithm": "bsp", "task": "digits"})
    return store, address


def begin(store):
    """Say what rank 0 says when the workers have met."""
    store.set("relaxcomm/run", json.dumps({"name": "", "size": 1, "facts": {}, "shown_as": ""}))


def said(*arguments: str) -> str:
    """The one line of a refusal."""
    done = CliRunner().invoke(app, ["join", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = [one for one in done.stderr.splitlines() if not one.startswith("relaxcomm: asks")]
    assert line.startswith("relaxcomm: error: ")
    return line


@pytest.mark.parametrize("address", ["nonsense", ":5", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x"])
def test_what_is_no_address(address):
    assert "is no HOST:PORT, such as 127.0.0.1:29400" in said(address)


def test_an_address_with_more_around_it():
    assert said("tcp://127.0.0.1:29400/").endswith("is no HOST:PORT; did you mean '127.0.0.1:29400'?")


@pytest.mark.parametrize("address", ["127.0.1.1", "::1"])
def test_a_name_that_is_loopback_on_this_machine_alone_is_no_address(monkeypatch, address):
    """Debian's and Red Hat's /etc/hosts have these for a machine's own name, where nobody came."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(None, None, None, None, (address, 0))])
    with pytest.raises(ConfigError, match=f"'node-0:29400': that name is {address} on this machine"):
        listen("node-0:29400")


def test_a_name_that_no_host_can_have_is_no_address():
    with pytest.raises(ConfigError, match=r"'host\.\.name': cannot listen there \(.*label"):
        listen("host..name")
    assert "nobody answers at host..name:29400" in said("host..name:29400")


def test_nobody_is_there():
    assert "(Connection refused): the run has ended, or the address is another" in said(
        f"127.0.0.1:{free_port()}"
    )
    assert "nobody answers at nowhere.invalid:29400" in said("nowhere.invalid:29400")


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b""])
def test_another_program_is_there(answer, capfd, monkeypatch):
    monkeypatch.setattr(invitation, "_SECONDS", 1.5)  # on a busy machine torch writes after a shorter time
    liar = Liar()
    liar.answer = answer
    try:
        assert "is not the store of a run; give the HOST:PORT that" in said(f"127.0.0.1:{liar.port}")
    finally:
        liar.close()
    assert "frame #" not in capfd.readouterr().err, "torch writes there, past Python"


def test_a_store_without_a_run_of_ours():
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    line = said(f"127.0.0.1:{store.port}")
    assert "has left no configuration: `relaxcomm train` has not started it, or without membership" in line
    assert f"relaxcomm join 127.0.0.1:{store.port} -- python script.py" in line


def test_a_run_that_has_ended(run):
    store, address = run
    invitation.end(store)
    assert said(address).endswith(f"the run at {address} has ended")


def test_a_run_that_ends_while_it_is_waited_for(monkeypatch, capfd):
    held, has_run = [listen("127.0.0.1")], elastic_store.has_run
    store, address = held[0]
    invitation.invite(store, {"algorithm": "bsp", "task": "digits"})
    del store

    def look(asked):
        found = has_run(asked)
        held.clear()  # the store ends
        return found

    monkeypatch.setattr(elastic_store, "has_run", look)
    assert said(address).endswith(f"the run at {address} has ended: its store answers no more")
    assert "frame #" not in capfd.readouterr().err


def test_a_run_that_does_not_begin(run, monkeypatch):
    clock = SimpleNamespace(monotonic=iter([0.0, 301.0]).__next__, sleep=None)
    monkeypatch.setattr(elastic_store, "time", clock)
    assert "has told of no run that can be joined" in said(run[1])


def test_an_interrupt_ends_this_worker_alone(run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("relaxcomm.cli.join.find_task", interrupt)
    done = CliRunner().invoke(app, ["join", run[1]])
    told = "relaxcomm: interrupted; the others go on without this worker"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (130, told)


def test_a_task_that_is_not_on_this_machine(run):
    store, address = run
    invitation.invite(store, {"algorithm": "bsp", "task": "elsewhere.job:make"})
    assert "task 'elsewhere.job:make': no module 'elsewhere' in" in said(address)


def test_a_configuration_that_is_not_elastic(run):
    store, address = run
    begin(store)
    assert "only elastic runs can be joined" in said(address)


def test_a_script_of_ones_own_takes_the_place_of_the_command(run, tmp_path, monkeypatch):
    store, address = run
    begin(store)
    names = ["RELAXCOMM_JOIN", "RANK", "TORCH_CPP_LOG_LEVEL"]
    script = f"import os; print(*map(os.environ.get, {names}))"
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    arguments = ["join", address, "--", sys.executable, "-c", script]
    main = "from relaxcomm.cli import main; main()"
    (done,) = launch_script(main, 1, arguments=arguments, environments=[{"RANK": "3", "WORLD_SIZE": "4"}])
    assert (done.returncode, done.stdout) == (0, f"{address} None ERROR\n"), done.stderr
    cannot = "cannot start '{}': No such file or directory{}"
    assert cannot.format("no-such-program", "") in said(address, "--", "no-such-program")
    assert cannot.format("pyton3", "; did you mean 'python3'?") in said(address, "--", "pyton3")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    hint = "; the file is there, but no program: write python mine.py"
    assert cannot.format("mine.py", hint) in said(address, "--", "mine.py")


@pytest.mark.parametrize("address", ["192.0.2.1", "nowhere.invalid"])
def test_a_store_listens_only_where_this_machine_is(address):
    with pytest.raises(ConfigError, match="cannot listen there"):
        listen(address)
