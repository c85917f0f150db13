"""Real processes of the command line, each in a process group of its own."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

TASK = """\
import os
from dataclasses import replace
from relaxcomm.tasks.digits import make as digits


def make(seed: int, what: str = "nothing"):
    task = digits(seed, epochs=2, hidden=[16])
    calls = []

    def loss(model, batch):
        calls.append(1)
        if os.environ.get("RANK") == "1" and len(calls) == 5:
            if what == "raise":
                raise ValueError("the disk is full")
            if what == "exit":
                os._exit(7)
            if what == "hang":
                import time
                time.sleep(1000)
        return task.loss(model, batch)

    return replace(task, loss=loss)
"""


@dataclass
class Finished:
    """What a process left behind."""

    code: int
    out: str
    err: str
    left_over: bool


class Running:
    """A process that is on its way."""

    def __init__(self, command, cwd: Path) -> None:
        env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env | {"COLUMNS": "60"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, timeout: float = 60) -> Finished:
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        return Finished(self.process.returncode, out, err, self._left_over())

    def _left_over(self) -> bool:
        """Whether a process of the group outlives its leader for more than a moment."""
        for _ in range(50):
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return False
            time.sleep(0.1)
        os.killpg(self.process.pid, signal.SIGKILL)
        return True


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


@pytest.fixture(scope="module")
def start(folder):
    """Start `relaxcomm …`, under `launcher` if given."""

    def started(*arguments: str, launcher: tuple[str, ...] = ()) -> Running:
        return Running(
            [sys.executable, "-m", *launcher, *(["-m"] if launcher else []), "relaxcomm", *arguments], folder
        )

    return started


@pytest.fixture(scope="module")
def torchrun() -> tuple[str, ...]:
    """What puts a module under torchrun with two ranks."""
    return ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
