"""Real processes of the command line, none of which outlives its test."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.ranks import PATIENCE_SECONDS
from tests.waiting import until

T = TypeVar("T")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a script's background: all would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

TASK = """\
import os
import signal
import subprocess
import time
from dataclasses import replace
from relaxcomm.engine import switching
from relaxcomm.tasks.digits import make as digits


def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def sleep():
    subprocess.Popen(["sh", "-c", f"sleep 6; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def make(seed: int, what: str = "nothing", rank: int = 1, epochs: int = 2, pause: float = 0.0):
    if os.environ.get("RANK") == str(rank):
        if what == "die early" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            die()
        if what == "die in switch":
            switching.replicas.equalise = die
        if what == "fail early":
            raise OSError("no data here")
    task = digits(seed, epochs=epochs, hidden=[16])
    calls = []

    def loss(model, batch):
        calls.append(1)
        time.sleep(pause)
        if os.environ.get("RANK") == str(rank) and len(calls) == 5:
            if what == "kill":
                die()
            if what == "sleep":
                sleep()
            if what == "raise":
                raise ValueError("the disk is full")
            if what == "nan":
                return task.loss(model, batch) * float("nan")
            if what == "exit":
                os._exit(7)
            if what == "quit":
                os._exit(0)
            if what == "hang":
                import pathlib
                pathlib.Path("hangs").touch()
                time.sleep(1000)
        return task.loss(model, batch)

    def evaluate(model):
        if os.environ.get("RANK") == str(rank) and 5 < len(calls) < 40 and what.endswith(" in evaluation"):
            calls.extend([1] * 40)
            {"sleep in evaluation": sleep, "die in evaluation": die}[what]()
        return task.evaluate(model)

    return replace(task, loss=loss, evaluate=evaluate)
"""


@dataclass
class Finished:
    """What a process left behind."""

    code: int
    out: str
    err: str
    left_over: bool


class Running:
    """A process that is on its way, in a process group of its own."""

    def __init__(self, command, cwd: Path, own: Mapping[str, str]) -> None:
        env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        self._mark = f"RELAXCOMM_TEST={uuid.uuid4()}"
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env | {"COLUMNS": "60"} | own | dict([self._mark.split("=")]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, timeout: float = PATIENCE_SECONDS) -> Finished:
        out, err = self.process.communicate(timeout=timeout)
        return Finished(self.process.returncode, out, err, self.left_over())

    def members(self) -> list[int]:
        """It and all that came of it, also in sessions of their own: they inherit a mark."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self._mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it has ended, or is another user's
                continue
        return found

    def until(self, look: Callable[[], T], what: str) -> T:
        """What `look` returns once it is true, if that is before the process has ended."""
        found = until(lambda: look() or self.process.poll() is not None, what)
        assert self.process.poll() is None, self.process.communicate()
        return found

    def kill(self) -> None:
        """End it and all that came of it, however the test went."""
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def left_over(self) -> bool:
        """Whether a process outlives the first by more than a busy machine needs to end it."""
        try:
            until(lambda: not self.members(), "the end of all processes", 60)
        except AssertionError:
            return True
        return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A user's folder with a configuration and a task."""
    made = tmp_path_factory.mktemp("user")
    (made / "mine").mkdir()
    (made / "mine" / "job.py").write_text(TASK)
    (made / "quick.yaml").write_text(
        "algorithm: {name: local_sgd, steps: 4}\ntask: {digits: {epochs: 2, hidden: [16]}}\nbackend: gloo\n"
    )
    return made


@pytest.fixture
def start(folder):
    """Start `relaxcomm …`, under `launcher` and with `env` if given; nothing of it is left after the test."""
    yield from starting(folder)


@pytest.fixture(scope="module")
def start_together(folder):
    """The same for processes that all tests of a file look at."""
    yield from starting(folder)


def starting(folder: Path) -> Iterator[Callable[..., Running]]:
    """What both give."""
    made: list[Running] = []

    def started(
        *arguments: str,
        launcher: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path = folder,
    ) -> Running:
        command = [sys.executable, "-m", *launcher, *(["-m"] if launcher else []), "relaxcomm", *arguments]
        made.append(Running(command, cwd, env or {}))
        return made[-1]

    yield started
    for one in made:
        one.kill()


@pytest.fixture(scope="module")
def torchrun() -> tuple[str, ...]:
    """What puts a module under torchrun with two ranks."""
    return ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
