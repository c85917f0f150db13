"""The training time of a run."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Counts seconds, on a GPU only those of finished work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started: float | None = None
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Time that has run so far."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._seconds + running

    def go_on_from(self, seconds: float) -> None:
        """Count on from what another has counted."""
        self._seconds = seconds

    def start(self) -> None:
        """Go on."""
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Hold."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._seconds = self.seconds
        self._started = None
