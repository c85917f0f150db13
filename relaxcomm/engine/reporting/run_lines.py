"""The lines of a run log: what becomes of one rank's run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from relaxcomm.errors import MetricsWarning
from relaxcomm.monitoring.run_log import RunLog
from relaxcomm.monitoring.snapshot import Snapshot
from relaxcomm.network.generations import Generation
from relaxcomm.step.bound import Bound
from relaxcomm.system.warn import warn

Numbers = Mapping[str, float | Tensor]


class RunLines:
    """Writes a line of each thing that happens, whose first key says what it is; nothing before `open`."""

    def __init__(self) -> None:
        self._log: RunLog | None = None

    @property
    def are_open(self) -> bool:
        """Whether anything is written."""
        return self._log is not None

    def open(self, path: Path, name: str, bound: Bound, limit_bytes: int) -> None:
        """Begin the log of a run; warns where there can be none.

        Args:
            path: of its file.
            name: the run's.
            bound: the algorithm that is begun with.
            limit_bytes: of the file.
        """
        world = bound.world
        try:
            self._log = RunLog(path, limit_bytes)
        except OSError as error:
            warn(f"there is no run log: {error}; see the key output", MetricsWarning)
            return
        of_rank = {"rank": world.process.rank, "world_size": world.size}
        self._log.write({"run": name, **of_rank, **_composed("algorithm", bound)})

    def switched(self, bound: Bound) -> None:
        """Another algorithm goes on."""
        seen = bound.world.statistics
        done = {"time": time.time(), "samples": seen.samples, "steps": seen.steps}
        self._write({**_composed("switched_to", bound), **done})

    def ranks_changed(self, bound: Bound, generation: Generation) -> None:
        """Ranks are lost, or others have joined."""
        self._write(
            {
                "generation": generation.number,
                "time": time.time(),
                "step": bound.world.statistics.steps,
                "lost": generation.lost,
                "joined": generation.joined,
                "world_size": bound.world.size,
            }
        )

    def evaluated(self, bound: Bound, measures: Numbers) -> None:
        """The training program has evaluated the model."""
        self._write({"evaluation": measures, "time": time.time(), "step": bound.world.statistics.steps})

    def synchronised(self, bound: Bound, triggers: Mapping[str, Any], values: Numbers) -> None:
        """Something was exchanged; the thread that writes it makes numbers of tensors.

        Args:
            bound: whose exchange.
            triggers: what voting triggers compared.
            values: the latest ones.
        """
        seen, counters = bound.world.statistics, bound.world.transport.counters
        self._write(
            {
                "time": time.time(),
                "step": seen.steps,
                "synchronisations": seen.synchronisations,
                "samples": seen.samples,
                "bytes_sent": counters.sent,
                "bytes_received": counters.received,
                "evaluation_bytes_sent": counters.evaluation[0],
                "bytes_uncompressed": seen.bytes_uncompressed,
                "step_seconds": seen.step_times.total,
                "exposed_communication_seconds": seen.exposed_seconds,
                "hidden_communication_seconds": seen.hidden_seconds,
                "callback_seconds": seen.busy_seconds,
                "triggers": triggers,
                **values,
            }
        )

    def close(self, status: str, last: Snapshot) -> None:
        """Write the summary."""
        if self._log is not None:
            self._log.close({"summary": {"status": status, **last.as_json()}})
        self._log = None

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.write(line)


def _composed(key: str, bound: Bound) -> dict[str, str]:
    return {key: bound.algorithm.name, "composition": repr(bound.algorithm)}
