"""The faults, the algorithms, and what is expected where they meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

SIZE, EPOCHS, BATCH_SIZE, SEED = 4, 4, 24, 0
FAULT_STEP, SAVE_STEP = 33, 22
"""Steps, counted from 0, in which the fault happens, and in which a checkpoint was saved before."""

Outcome: TypeAlias = Literal["waits", "goes on", "ends", "refuses"]
"""What is right: all ranks end as if nothing had been; those who are left go on without the victim; all end
with an error that names it; or all refuse a checkpoint, with nothing changed."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Args:
        name: of the row.
        at: where it happens to the victim.
        expected: what is right in most algorithms.
        victim: the rank.
        timeout_seconds: of the run's configuration.
        limit_seconds: after which a rank that has not ended hangs.
        needs: what only root can make: hosts behind links that can be cut, or a small file system.
    """

    name: str
    at: Literal["step", "exchange", "start", "checkpoint", "never"]
    expected: Outcome
    victim: int = 2
    timeout_seconds: float = 40
    limit_seconds: float = 60
    needs: Literal["nothing", "hosts", "disk"] = "nothing"


_SHORT = 6.0  # the longest wait for a rank that is silent for good

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("SIGKILL in compute", "step", "goes on"),
        Fault("SIGKILL in an exchange", "exchange", "goes on"),
        Fault("SIGKILL of rank 0", "step", "goes on", victim=0),
        Fault("SIGTERM", "step", "goes on"),
        Fault("exception", "step", "goes on"),
        Fault("SIGSTOP for 20 s", "step", "waits", limit_seconds=90),
        Fault("SIGSTOP for good", "step", "goes on", timeout_seconds=_SHORT),
        Fault("link cut for 5 s", "step", "waits", limit_seconds=90, needs="hosts"),
        Fault("link cut for good", "step", "goes on", timeout_seconds=_SHORT, needs="hosts"),
        Fault("disk full", "checkpoint", "refuses", needs="disk"),
        Fault("checkpoint truncated", "checkpoint", "refuses"),
        Fault("checkpoint bit-flipped", "checkpoint", "refuses"),
        Fault("checkpoint foreign", "checkpoint", "refuses"),
        Fault("NaN", "step", "ends"),
        Fault("10 times slower", "step", "waits"),
        Fault("starts 30 s late", "start", "waits", limit_seconds=120),
    )
}
NONE = Fault("none", "never", "waits")

_ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "bsp": {"algorithm": "bsp"},
    "local_sgd": {"algorithm": {"name": "local_sgd", "steps": 4}},
    "selsync": {"algorithm": {"name": "selsync", "threshold": 0.05}},
    "ssp": {"algorithm": {"name": "ssp", "staleness": 3}},
    "fedavg": {"algorithm": "fedavg"},
    "gaussiank_sgd": {"algorithm": {"name": "gaussiank_sgd", "density": 0.1}},
    "d_psgd": {"algorithm": "d_psgd", "topology": "ring"},
    "choco_sgd": {"algorithm": "choco_sgd", "topology": "ring"},
    "streaming_diloco": {"algorithm": {"name": "streaming_diloco", "steps": 8, "delay": 3}},
    "async_model_average": {"algorithm": "async_model_average"},
}
ALGORITHMS = tuple(_ALGORITHMS)
_WAIT_FOR_NOBODY = ("ssp", "async_model_average")


@dataclass(frozen=True)
class Cell:
    """A fault in a run with an algorithm.

    Args:
        algorithm: of `ALGORITHMS`.
        fault: of `FAULTS`, or `NONE`.
    """

    algorithm: str
    fault: Fault

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.algorithm}, {self.fault.name}"

    @property
    def expected(self) -> Outcome:
        """What is right; one whose model is spoilt ends alone where workers wait for nobody."""
        if self.fault.name == "NaN" and self.algorithm in _WAIT_FOR_NOBODY:
            return "goes on"
        return self.fault.expected

    @property
    def exact(self) -> bool:
        """Whether two undisturbed runs agree bit for bit."""
        return self.algorithm not in _WAIT_FOR_NOBODY

    @property
    def names_victim(self) -> bool:
        """Whether errors tell whose fault it was: nobody looks for NaN in gradients of full precision, and
        when replicas are compared all have it.
        """
        return (self.algorithm, self.fault.name) != ("bsp", "NaN")

    @property
    def config(self) -> dict[str, Any]:
        """Of the run."""
        return {
            **_ALGORITHMS[self.algorithm],
            "membership": {"elastic": True},
            "bucket_bytes": 4_000,  # two buckets
            "timeout_seconds": self.fault.timeout_seconds,
            "drift_guard": {"every_steps": 3},
        }


def all_cells() -> list[Cell]:
    """The matrix; those that wait long come first."""
    order = sorted(FAULTS.values(), key=lambda fault: -fault.limit_seconds)
    return [Cell(algorithm, fault) for fault in order for algorithm in ALGORITHMS]
