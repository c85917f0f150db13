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
import torch
from relaxcomm import Task
from relaxcomm.engine.switching import switching


def data(seed, size):
    # As many images as digits has, of ten kinds; scikit-learn takes as long to import as torch.
    draw = torch.Generator().manual_seed(seed)
    kinds = torch.arange(size) % 10
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    return centres[kinds] + torch.randn(size, 64, generator=draw), kinds


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
    torch.manual_seed(seed)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    test_images, test_kinds = data(seed + 1, 360)
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
                batch[0] *= float("nan")
            if what == "exit":
                os._exit(7)
            if what == "quit":
                os._exit(0)
            if what == "hang":
                import pathlib
                pathlib.Path("hangs").touch()
                time.sleep(1000)
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(model):
        if os.environ.get("RANK") == str(rank) and 5 < len(calls) < 40 and what.endswith(" in evaluation"):
            calls.extend([1] * 40)
            {"sleep in evaluation": sleep, "die in evaluation": die}[what]()
        return float((model(test_images).argmax(dim=1) == test_kinds).float().mean())

    return Task(
        model=layers,
        optimizer=torch.optim.SGD(layers.parameters(), lr=0.05, momentum=0.9),
        train_data=torch.utils.data.TensorDataset(*data(seed, 1437)),
        loss=loss,
        evaluate=evaluate,
        epochs=epochs,
        evaluate_every_steps=20,
    )
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
def start(folder: Path) -> Iterator[Callable[..., Running]]:
    """Start `relaxcomm …`, under `launcher` and with `env` if given; nothing of it is left after the test."""
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
