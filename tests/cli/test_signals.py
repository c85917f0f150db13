"""What a launcher does with those that it started, when it ends."""

import os
import signal
import threading
import time
from contextlib import nullcontext
from functools import partial
from multiprocessing import forkserver, resource_tracker

import psutil
import pytest
from torch.distributed.elastic.multiprocessing import MultiprocessContext, SignalException

from relaxcomm.cli import fork_server, launcher, signals
from relaxcomm.cli.exit_codes import RunFailed


class Worker:
    """Notes what is done with it."""

    def __init__(self, done):
        self._done = done

    def kill(self):
        self._done.append("kill")


def test_all_are_killed_before_one_is_waited_for(monkeypatch):
    done = []
    found = iter([set(), {Worker(done), Worker(done)}])
    monkeypatch.setattr(signals, "_workers", lambda: next(found))
    monkeypatch.setattr(psutil, "wait_procs", lambda left: done.append(f"wait for {len(left)}"))
    with signals.no_worker_left():
        pass
    assert done == ["kill", "kill", "wait for 2"], "or the others say that they have lost the first"


@pytest.mark.ranks
def test_a_worker_that_an_interrupt_found_half_begun_is_ended(monkeypatch):
    """It was asked for, `multiprocessing` has not taken note of it, and it waits to be told what to do."""
    connect, asked = forkserver.connect_to_new_process, []

    def interrupted(files):
        asked.append(connect(files))
        if len(asked) == 2:  # the first one tells of its environment
            raise KeyboardInterrupt
        return asked[-1]

    before = signals._workers()
    monkeypatch.setattr(forkserver, "connect_to_new_process", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launcher.launch(int, 2)
    with fork_server.begun():  # what was asked for is there by now
        assert signals._workers() <= before
    for file in asked[1]:
        os.close(file)


def test_what_others_have_started_goes_on():
    """Such as what a child of the program that launches starts meanwhile."""
    with signals.no_worker_left():
        shell = psutil.Popen(["sh", "-c", "sleep 100 & wait"])
        while not (started := shell.children()):
            time.sleep(0.01)
    try:
        assert started[0].is_running()
        assert started[0].status() != psutil.STATUS_ZOMBIE
    finally:
        for one in (shell, *started):
            one.kill()
        shell.wait()


@pytest.mark.ranks
def test_a_server_that_a_signal_has_ended_is_not_started_again_to_end():
    """SIGTERM, and SIGHUP of a closed terminal, may go to the whole group; another imports for seconds."""

    def hit():
        end_server()
        signals.raise_signal(signal.SIGTERM, None)

    with pytest.raises(SignalException), fork_server.begun():
        hit()
    assert fork_server.server() is None


@pytest.mark.ranks
def test_an_interrupt_does_not_wait_for_what_the_server_imports(monkeypatch, tmp_path):
    (tmp_path / "imports_for_long.py").write_text("import time\ntime.sleep(100)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)  # Python 3.11 hands it no sys.path
    monkeypatch.setattr(fork_server, "_IMPORTS", "imports_for_long")
    end_server()

    def interrupt():
        while fork_server.server() is None:
            time.sleep(0.01)
        time.sleep(0.5)  # it is waited for by now
        os.kill(os.getpid(), signal.SIGINT)

    before, begun = signal.signal(signal.SIGINT, signal.default_int_handler), time.monotonic()
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            launcher.launch(int, 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begun < 60
    end_server(kill=False)


def end_server(*, kill=True):
    """Wait until there is none, or the common limit ends the test."""
    if kill and (found := fork_server.server()) is not None:
        found.kill()
    while fork_server.server() is not None:
        time.sleep(0.01)


@pytest.mark.parametrize("during", ["start", "cancel"])
def test_a_deadline_that_passes_while_it_is_set_or_called_off_says_so(during, monkeypatch, tmp_path):
    timer = threading.Timer

    class Passing(timer):
        pass

    setattr(Passing, during, lambda one: (timer.cancel(one), one.function()))  # none is left behind
    monkeypatch.setattr(threading, "Timer", Passing)
    said = "only 0 of 2 workers began within 1000 s"
    with signals.signals(), pytest.raises(RunFailed, match=said), launcher._deadline(tmp_path, 2, 1000.0):
        pass


def test_a_signal_that_comes_while_handlers_are_set_leaves_none_of_them(monkeypatch):
    def signals_so_far():
        yield signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(signals, "ending", signals_so_far)
    with pytest.raises(SignalException), signals.signals():
        pass
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_an_interrupt_waits_for_is_told(monkeypatch, capsys):
    """torch's launcher gives workers that ignore SIGTERM 30 s, in which nothing was said."""
    monkeypatch.setattr(signals, "_SILENT_SECONDS", 0.05)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with signals.signals():
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.count("another Ctrl-C ends them at once") == 1


def masked():
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_cleans_up_outlives_a_closed_terminal_and_workers_begin_deaf_to_an_interrupt(monkeypatch):
    """Another in its place would not know what is to be cleaned up, and say so in pages."""
    blocked, before = [], masked()
    for module in (resource_tracker, forkserver):
        monkeypatch.setattr(module, "ensure_running", lambda: blocked.append(masked() - before))
    with fork_server.begun():
        blocked.append(masked() - before)
    assert (blocked[:2], blocked[-1]) == ([{signal.SIGHUP, signal.SIGQUIT}, {signal.SIGINT}], set())


def ignore(folder):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / os.environ["RANK"]).touch()
    time.sleep(1000)


@pytest.mark.ranks
def test_a_second_interrupt_waits_for_nobody(monkeypatch, tmp_path):
    """The first one lets workers end in their own way, for half a minute."""
    close, begun = MultiprocessContext._close, []

    def closes(context, death_sig, **limits):
        begun.append(time.monotonic())
        close(context, death_sig, **limits)

    def interrupt():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        while not begun:
            time.sleep(0.01)
        time.sleep(0.5)  # it waits by now
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(MultiprocessContext, "_close", closes)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            launcher.launch(partial(ignore, tmp_path), 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begun[0] < 25


def test_what_nohup_has_ignored_ends_nothing(monkeypatch):
    asked = []

    def started(settings, work):
        asked.append(settings.signals_to_handle)
        os.kill(os.getpid(), signal.SIGHUP)
        return lambda *arguments: {0: "ended"}

    monkeypatch.setattr(launcher, "elastic_launch", started)
    monkeypatch.setattr(fork_server, "begun", partial(nullcontext, {}))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert launcher.launch(int, 2) == "ended"
    finally:
        signal.signal(signal.SIGHUP, before)
    assert asked == ["SIGTERM,SIGQUIT"]
