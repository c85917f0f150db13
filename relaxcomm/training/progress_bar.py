"""What rank 0 shows while it trains: a live bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_REFRESH_SECONDS = 0.1


class Display(ABC):
    """Follows one training run.

    Args:
        title: shown in front.
        steps: optimizer steps of the whole run; set them where they change.
        metric: name of the held-out measure.
    """

    def __init__(self, title: str, steps: int, metric: str) -> None:
        self.title = title
        self.steps = steps
        self.metric = metric

    @abstractmethod
    def step(self, step: int, loss: torch.Tensor) -> None:
        """A step was taken."""

    @abstractmethod
    def evaluated(self, step: int, measure: float, seconds: float) -> None:
        """The model was evaluated after `step` steps and `seconds` of training."""

    def close(self) -> None:  # noqa: B027  # only the live bar has something to close
        """The run ended, well or badly."""


class Silence(Display):
    """Shows nothing: what ranks other than 0 have."""

    def step(self, step: int, loss: torch.Tensor) -> None:
        return

    def evaluated(self, step: int, measure: float, seconds: float) -> None:
        return


class Lines(Display):
    """About ten plain lines a run, for logs and pipes."""

    def __init__(self, title: str, steps: int, metric: str) -> None:
        super().__init__(title, steps, metric)
        self._last: torch.Tensor | None = None
        self._next_line = 0.0

    def step(self, step: int, loss: torch.Tensor) -> None:
        self._last = loss

    def evaluated(self, step: int, measure: float, seconds: float) -> None:
        if step < self._next_line and step < self.steps:
            return
        self._next_line = step + self.steps / 10
        loss = float(self._last) if self._last is not None else float("nan")
        speed = step / seconds if seconds else 0.0
        print(
            f"{self.title}  step {step}/{self.steps}  loss {loss:.4f}  {self.metric} {measure:.4f}"
            f"  {speed:.0f} step/s",
            file=sys.stderr,
            flush=True,
        )


class Bar(Display):
    """A live progress bar."""

    def __init__(self, title: str, steps: int, metric: str, console: Console) -> None:
        super().__init__(title, steps, metric)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task(title, total=steps, note="")
        self._speed = self._measure = ""
        self._shown_step, self._shown_at = 0, time.perf_counter()
        self._progress.start()

    def step(self, step: int, loss: torch.Tensor) -> None:
        now = time.perf_counter()
        if now - self._shown_at < _REFRESH_SECONDS and step < self.steps:
            return  # reading the loss would make a GPU wait in every step
        speed = (step - self._shown_step) / (now - self._shown_at)
        self._shown_step, self._shown_at = step, now
        self._speed = f"loss {float(loss):.4f}  {speed:.0f} step/s"
        self._update(step)

    def evaluated(self, step: int, measure: float, seconds: float) -> None:
        self._measure = f"  {self.metric} {measure:.4f}"
        self._shown_at = time.perf_counter()  # the evaluation is no part of the speed
        self._shown_step = step
        self._update(step)

    def _update(self, step: int) -> None:
        note = f"{self._speed}{self._measure}"
        self._progress.update(self._task, completed=step, total=self.steps, note=note)

    def close(self) -> None:
        self._progress.stop()


def make_display(title: str, steps: int, metric: str, *, rank: int) -> Display:
    """The display that suits this rank and what standard error is connected to."""
    if rank != 0:
        return Silence(title, steps, metric)
    console = Console(stderr=True)
    if console.is_terminal:
        return Bar(title, steps, metric, console)
    return Lines(title, steps, metric)
