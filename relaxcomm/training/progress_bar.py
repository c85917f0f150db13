"""What rank 0 shows while it trains: a live bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from relaxcomm.system.quantities import data_size

_REFRESH_SECONDS = 0.1


class Display:
    """Follows one training run, and shows nothing of it: what ranks other than 0 have.

    Args:
        title: shown in front; set it where the algorithm changes.
        steps: optimizer steps of the whole run, about; set them where they change.
        metric: name of the held-out measure.
        statistics: the engine's, of this rank.
    """

    def __init__(self, title: str, steps: int, metric: str, statistics: Mapping[str, float]) -> None:
        self.title = title
        self.steps = steps
        self.metric = metric
        self.statistics = statistics

    def step(self, step: int, loss: torch.Tensor) -> None:
        """A step was taken."""

    def evaluated(self, step: int, measure: float, seconds: float) -> None:
        """The model was evaluated after `step` steps and `seconds` of training."""

    def close(self) -> None:
        """The run ended, well or badly."""

    def communication(self) -> str:
        """What rank 0 has sent so far, and the share of steps in which nothing was exchanged."""
        sent, local = self.statistics["bytes_sent"], self.statistics["lssr"]
        return f"rank 0 sent {data_size(sent)}  {local:.0%} local"


class Lines(Display):
    """About ten plain lines a run, for logs and pipes."""

    _last: torch.Tensor | None = None
    _next_line = 0.0

    def step(self, step: int, loss: torch.Tensor) -> None:
        self._last = loss

    def evaluated(self, step: int, measure: float, seconds: float) -> None:
        if step < self._next_line and step < self.steps:
            return
        self._next_line = step + self.steps / 10
        loss = "" if self._last is None else f"loss {float(self._last):.4f}  "  # none where all was trained
        speed = step / seconds if seconds else 0.0
        print(
            f"{self.title}  step {step}/{max(step, self.steps)}  {loss}{self.metric} {measure:.4f}"
            f"  {_rate(speed)}  {self.communication()}",
            file=sys.stderr,
            flush=True,
        )


class Bar(Display):
    """A live progress bar, and below it what the run does."""

    def __init__(
        self, title: str, steps: int, metric: str, statistics: Mapping[str, float], console: Console
    ) -> None:
        super().__init__(title, steps, metric, statistics)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task(title, total=steps)
        self._note = Text(no_wrap=True, overflow="ellipsis")
        self._loss = self._measure = ""
        self._shown_step, self._shown_at = 0, time.perf_counter()
        self._live = Live(Group(self._progress, self._note), console=console, refresh_per_second=10)
        self._live.start()

    def step(self, step: int, loss: torch.Tensor) -> None:
        now = time.perf_counter()
        if now - self._shown_at < _REFRESH_SECONDS and step < self.steps:
            return  # reading the loss would make a GPU wait in every step
        speed = (step - self._shown_step) / (now - self._shown_at)
        self._shown_step, self._shown_at = step, now
        self._loss = f"loss {float(loss):.4f}  {_rate(speed)}  "
        self._update(step)

    def evaluated(self, step: int, measure: float, seconds: float) -> None:
        self._measure = f"  {self.metric} {measure:.4f}"
        self._shown_at = time.perf_counter()  # the evaluation is no part of the speed
        self._shown_step = step
        self._update(step)

    def _update(self, step: int) -> None:
        self._note.plain = f"  {self._loss}{self.communication()}{self._measure}"
        self._progress.update(self._task, description=self.title, completed=step, total=max(step, self.steps))

    def close(self) -> None:
        self._live.stop()


def _rate(steps_per_second: float) -> str:
    return f"{steps_per_second:{',.0f' if steps_per_second >= 10 else '.2g'}} step/s"


def make_display(
    title: str, steps: int, metric: str, statistics: Mapping[str, float], *, rank: int
) -> Display:
    """The display that suits this rank and what standard error is connected to."""
    if rank != 0:
        return Display(title, steps, metric, statistics)
    console = Console(stderr=True)
    if console.is_terminal:
        return Bar(title, steps, metric, statistics, console)
    return Lines(title, steps, metric, statistics)
