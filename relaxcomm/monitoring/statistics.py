"""True counts of a run on this rank."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from relaxcomm.fields.validation import closest
from relaxcomm.monitoring.observations import Histogram, InFlight
from relaxcomm.network.byte_counters import ByteCounters

SECONDS = ("exposed_communication_seconds", "hidden_communication_seconds")
"""Times that a checkpoint keeps."""


class Busy:
    """Times the outermost of nested blocks; one object for all, since they are entered in every step.

    Args:
        statistics: which take the time.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._statistics, self._depth = statistics, 0
        self._begin = 0.0  # on a clock that stands still while this rank waits

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._begin = time.perf_counter() - self._statistics.waiting_seconds

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            seen = self._statistics
            seen.busy_seconds += time.perf_counter() - seen.waiting_seconds - self._begin


class Wait:
    """Times waits for the network; one object for all, since there are several in every step.

    Args:
        statistics: which take the time.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._statistics, self._begin = statistics, 0.0

    def __enter__(self) -> None:
        self._begin = self._statistics.in_flight.departed()

    def __exit__(self, *error: object) -> None:
        self._statistics.waiting_seconds += self._statistics.in_flight.landed(self._begin) - self._begin


class Statistics(Mapping[str, float]):
    """A read-only mapping of counters; times in seconds, amounts in bytes, of this rank.

    Keys:
        steps: windows that were closed, also those that a GradScaler skipped.
        synchronisations: steps, and rounds of clients, in which something was exchanged. A rank that
            asks only itself, as others come to it, counts those in which it takes over what they brought.
        samples: of this rank's batches that `engine.loader` has given out to be trained on.
        lssr: local steps / all steps; 0 where a rank plays clients in fewer steps than there are rounds.
        bytes_sent, bytes_received: what was handed to and taken from the network for training.
        evaluation_bytes_sent, evaluation_bytes_received: the same for `Engine.averaged` and the average of
            `Engine.close`. Together with training's they are all.
        bytes_uncompressed: what BSP in full precision would have sent in as many steps.
        step_seconds: mean time from one step's end to the next, since the process started.
        exposed_communication_seconds: time that this rank stood waiting for the network, not counting
            evaluations. Over NCCL it is the GPU's stream that waits; its times are known some steps later.
        hidden_communication_seconds: time in timed steps in which exchanges were on their way and this
            rank did not stand waiting.
        staleness_steps: the most clocks by which parameters read from a server have missed pushes.
        contributors: the most workers with a part in one move of a model that waits for a quorum.
        callback_seconds: time in the engine's own callbacks, waiting excluded.
    """

    def __init__(self, counters: ByteCounters) -> None:
        self._counters = counters
        self.steps = 0
        self.synchronisations = 0
        self.samples = 0
        self.trained_on = 0
        """Samples of all steps until now; a step counts as one where no loader says how many it has."""
        self._samples_before = 0  # the step under way
        self.bytes_uncompressed = 0
        self.waiting_seconds = 0.0
        self.evaluation_waiting_seconds = 0.0  # a part of it
        self._device_waiting_seconds = 0.0
        self.busy_seconds = 0.0
        self.step_times = Histogram()
        self.in_flight = InFlight()
        self.exposed_seconds = self.hidden_seconds = 0.0  # in the steps that were timed, and after them
        self._exposed_before = self._hidden_before = 0.0  # a checkpoint, in another process
        self.last_synchronisation: float | None = None  # on the clock of the wall
        self._last_step: float | None = None
        self._waited_before = self._flown_before = 0.0
        self.busy = Busy(self)
        """Times the engine's own callbacks; nested ones and waits are not counted twice."""
        self.waiting = Wait(self)
        """Times a wait for the network."""
        self.notes: dict[str, float] = {}
        self.latest: dict[str, float | Tensor] = {}
        self.evaluations: dict[str, float | Tensor] = {}  # latest of each measure

    def tick(
        self, synchronised: bool, uncompressed: int, device_waited: float = 0.0, device_flown: float = 0.0
    ) -> None:
        """Count a closed step.

        Args:
            synchronised: whether something was exchanged in it.
            uncompressed: bytes that BSP would have sent.
            device_waited: seconds in which a GPU's stream waited for exchanges, of those that have landed.
            device_flown: seconds in which these were on their way.
        """
        now = time.perf_counter()
        self._device_waiting_seconds += device_waited
        flown = self.in_flight.seconds(now) + device_flown
        if self._last_step is not None:
            self.step_times.observe(now - self._last_step)
            self._count_waits(flown, device_waited)
        self._last_step, self._waited_before = now, self.waiting_seconds
        self._flown_before = flown - device_flown
        self.steps += 1
        self.bytes_uncompressed += uncompressed
        if synchronised:
            self.synchronised()

    def rewind(self, steps: int, uncompressed: int) -> None:
        """Take back steps in which nothing was trained or exchanged."""
        self.steps -= steps
        self.bytes_uncompressed -= steps * uncompressed

    def synchronised(self) -> None:
        """Count a synchronisation."""
        self.synchronisations += 1
        self.last_synchronisation = time.time()

    def pause(self) -> None:
        """Leave the time until the next step out of `step_seconds` (a join); waits until now count."""
        if self._last_step is not None:
            self._count_waits(self.in_flight.seconds(time.perf_counter()))
        self._last_step = None

    def _count_waits(self, flown: float, device_waited: float = 0.0) -> None:
        """Count how long this rank stood waiting since the last step, and what was hidden, as in `tick`."""
        exposed = self.waiting_seconds - self._waited_before + device_waited
        self.exposed_seconds += exposed
        self.hidden_seconds += max(0.0, flown - self._flown_before - exposed)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Leave an evaluation out of the step times, and its waits out of training's."""
        self.pause()
        trained = self.waiting_seconds - self.evaluation_waiting_seconds
        try:
            yield
        finally:
            self.evaluation_waiting_seconds = self.waiting_seconds - trained
            self.pause()

    def given(self, samples: int) -> None:
        """Count the samples of a batch that is going to be trained on."""
        self.samples += samples
        self.latest["batch_size"] = samples

    def trained(self) -> None:
        """The optimizers have stepped."""
        self.trained_on += self.samples - self._samples_before if self.samples else 1
        self._samples_before = self.samples

    def record(self, name: str, value: float) -> None:
        """Keep the largest and the latest value of a named number that a primitive reports."""
        self.notes[name] = max(value, self.notes.get(name, value))
        self.latest[name] = value

    def export(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        seconds = {name: self[name] for name in SECONDS}
        return {**self._counts(), **seconds, "bytes_by_rule": {**self._counters.by_rule}}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on counting from a checkpoint."""
        self.steps = int(saved["steps"])
        self.synchronisations = int(saved["synchronisations"])
        self.samples = self._samples_before = int(saved["samples"])
        self.bytes_uncompressed = int(saved["bytes_uncompressed"])
        self._counters.sent = int(saved["bytes_sent"])
        self._counters.received = int(saved["bytes_received"])
        self._counters.by_rule = dict(saved["bytes_by_rule"])
        exposed, hidden = (float(saved[name]) - self[name] for name in SECONDS)
        self._exposed_before += exposed
        self._hidden_before += hidden

    def _counts(self) -> dict[str, float]:
        return {
            "steps": self.steps,
            "synchronisations": self.synchronisations,
            "samples": self.samples,
            "bytes_uncompressed": self.bytes_uncompressed,
            "bytes_sent": self._counters.sent,
            "bytes_received": self._counters.received,
            "evaluation_bytes_sent": self._counters.evaluation[0],
            "evaluation_bytes_received": self._counters.evaluation[1],
        }

    def _values(self) -> dict[str, float]:
        return {
            **self._counts(),
            "lssr": max(0, self.steps - self.synchronisations) / max(1, self.steps),
            "step_seconds": self.step_times.total / max(1, self.step_times.count),
            "exposed_communication_seconds": self._exposed_before
            + self._device_waiting_seconds
            + self.waiting_seconds
            - self.evaluation_waiting_seconds,
            "hidden_communication_seconds": self._hidden_before + self.hidden_seconds,
            "callback_seconds": self.busy_seconds,
            **self.notes,
        }

    def __getitem__(self, key: str) -> float:
        values = self._values()
        if key not in values:
            raise KeyError(f"{key!r}{closest(key, values)}")
        return values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        return f"Statistics({self._values()})"
