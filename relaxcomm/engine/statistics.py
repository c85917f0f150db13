"""True counts of a run on this rank."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from relaxcomm.transport.base import ByteCounters


class Statistics(Mapping[str, float]):
    """A read-only mapping of counters; times in seconds, amounts in bytes, of this rank.

    Keys:
        steps: windows that were closed, also those that a GradScaler skipped.
        synchronisations: steps in which something was exchanged.
        samples: of this rank's batches from `engine.loader` that were trained on.
        lssr: local steps / all steps.
        bytes_sent, bytes_received: what was handed to and taken from the network.
        bytes_uncompressed: what BSP in full precision would have sent in as many steps.
        step_seconds: mean time from one step's end to the next.
        exposed_communication_seconds: time that this rank stood waiting for the network.
        staleness_steps: the most clocks by which parameters read from a server have missed pushes.
        callback_seconds: time in the engine's own callbacks, waiting excluded.
    """

    def __init__(self, counters: ByteCounters) -> None:
        self._counters = counters
        self.steps = 0
        self.synchronisations = 0
        self.samples = 0
        self.bytes_uncompressed = 0
        self.waiting_seconds = 0.0
        self.busy_seconds = 0.0
        self._timed_steps = 0
        self._step_seconds = 0.0
        self._last_step: float | None = None
        self._depth = 0
        self.notes: dict[str, float] = {}

    def tick(self, synchronised: bool, uncompressed: int) -> None:
        """Count a closed step."""
        now = time.perf_counter()
        if self._last_step is not None:
            self._step_seconds += now - self._last_step
            self._timed_steps += 1
        self._last_step = now
        self.steps += 1
        self.synchronisations += synchronised
        self.bytes_uncompressed += uncompressed

    def pause(self) -> None:
        """Leave the time until the next step out of `step_seconds` (an evaluation, a join)."""
        self._last_step = None

    def consumed(self, samples: int) -> None:
        """Count samples of a batch that was trained on."""
        self.samples += samples

    def note(self, name: str, value: float) -> None:
        """Keep the largest value of a named number that a primitive reports."""
        self.notes[name] = max(value, self.notes.get(name, value))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time a wait for the network."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.waiting_seconds += time.perf_counter() - begin

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Time one of the engine's own callbacks; nested ones and waits are not counted twice."""
        if self._depth:
            yield
            return
        begin, waited = time.perf_counter(), self.waiting_seconds
        self._depth = 1
        try:
            yield
        finally:
            self._depth = 0
            self.busy_seconds += time.perf_counter() - begin - (self.waiting_seconds - waited)

    def export(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {
            "steps": self.steps,
            "synchronisations": self.synchronisations,
            "samples": self.samples,
            "bytes_uncompressed": self.bytes_uncompressed,
            "bytes_sent": self._counters.sent,
            "bytes_received": self._counters.received,
        }

    def restore(self, saved: Mapping[str, float]) -> None:
        """Go on counting from a checkpoint."""
        self.steps = int(saved["steps"])
        self.synchronisations = int(saved["synchronisations"])
        self.samples = int(saved["samples"])
        self.bytes_uncompressed = int(saved["bytes_uncompressed"])
        self._counters.sent = int(saved["bytes_sent"])
        self._counters.received = int(saved["bytes_received"])

    def _values(self) -> dict[str, float]:
        return {
            **self.export(),
            "lssr": (self.steps - self.synchronisations) / self.steps if self.steps else 0.0,
            "step_seconds": self._step_seconds / self._timed_steps if self._timed_steps else 0.0,
            "exposed_communication_seconds": self.waiting_seconds,
            "callback_seconds": self.busy_seconds,
            **self.notes,
        }

    def __getitem__(self, key: str) -> float:
        return self._values()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        return f"Statistics({self._values()})"
