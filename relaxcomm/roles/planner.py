"""What chooses an algorithm when the first steps have shown what a run is like."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxcomm.fields.frozen import stated
from relaxcomm.roles.compressor import Compressor
from relaxcomm.roles.context import Primitive
from relaxcomm.system.quantities import bandwidth, data_size, duration


@dataclass(frozen=True)
class Measured:
    """What a run's first steps were like, the same on all ranks.

    Args:
        step_seconds: a step without communication, of the slowest worker.
        jitter_seconds: standard deviation of a worker's steps, of the worker whose steps vary most; who
            exchanges waits for the one that happens to be last.
        num_parameters: entries of all trainable parameters.
        parameter_bytes: bytes of all trainable parameters.
        world_size: number of workers.
        latency_seconds: an all-reduce of a few elements, whose messages are those of a large one.
        bytes_per_second: at which the slowest worker's bytes leave it in an all-reduce; infinity if there
            is one worker.
        adaptive_optimizer: whether the optimizer divides each entry of a gradient by that entry's usual size,
            as Adam does; then what parameters move differs little in size.
        num_buckets: in which gradients are exchanged; all but the last begin before backward has ended.
        crowding: seconds that a second of a worker's processor time takes: 1 where it has a core of its own,
            2 where two share one; 0 where its time costs none, on a GPU or simulated.
        coding: of each of the planner's `coders` the seconds of coding a bucket, there and back, and of an
            entry of it, on the device of the slowest rank; none where the planner names none.

    Example:
        >>> from relaxcomm.plugin import Measured
        >>> measured = Measured(
        ...     step_seconds=0.1,
        ...     jitter_seconds=0.0,
        ...     num_parameters=1_000_000,
        ...     parameter_bytes=4_000_000,
        ...     world_size=8,
        ...     latency_seconds=0.001,
        ...     bytes_per_second=1e7,
        ... )
        >>> seconds = 2 * 7 / 8 * measured.parameter_bytes / measured.bytes_per_second  # all-reduce
        >>> round(seconds / measured.step_seconds, 1)
        7.0
    """

    step_seconds: float
    jitter_seconds: float
    num_parameters: int
    parameter_bytes: int
    world_size: int
    latency_seconds: float
    bytes_per_second: float
    adaptive_optimizer: bool = False
    num_buckets: int = 1
    crowding: float = 0.0
    coding: tuple[tuple[float, float], ...] = ()

    @property
    def words(self) -> str:
        """What a planner's reason may begin with.

        Example:
            >>> from relaxcomm.plugin import Measured
            >>> Measured(0.1, 0.0, 1_000_000, 4_000_000, 8, 0.001, 1e7).words
            'a step computes 100 ms, 4 MB go at 80 Mbit/s'
        """
        return (
            f"a step computes {duration(self.step_seconds)}, {data_size(self.parameter_bytes)} "
            f"go at {bandwidth(self.bytes_per_second)}"
        )


@stated
class PlannerFacts:
    """What a planner declares.

    Args:
        after_steps: number of optimizer steps that are measured, at least 3; in all but the last of them
            nothing is exchanged.

    Example:
        >>> from relaxcomm_algorithms.auto import auto
        >>> auto().planner.facts.after_steps
        7
    """

    after_steps: int


class Planner(Primitive):
    """Says with which algorithm to go on, once the first steps have been measured.

    If nothing was exchanged yet, and what was chosen averages parameters, or deltas for which the first
    algorithm kept an anchor, it goes on as if it had run from the start: bit for bit, if it would have
    exchanged nothing in the measured steps. Exchanges that were due in them are missed, and the next one has
    what they would have had. Otherwise replicas that differ are averaged and its clock begins at 0, as after
    `engine.switch`.

    Example:
        >>> from relaxcomm import Algorithm, Rule, trajectory
        >>> from relaxcomm.plugin import Planner, PlannerFacts, frozen
        >>> from relaxcomm.primitives import all_reduce, every, parameters
        >>> @frozen
        ... class by_model_size(Planner):
        ...     facts = PlannerFacts(after_steps=3)
        ...     def choose(self, measured):
        ...         if measured.num_parameters > 1000:
        ...             return {"name": "local_sgd", "steps": 4}, "a large model"
        ...         return "bsp", "a small model"
        >>> rule = Rule(trigger=every(steps=4), payload=parameters(), exchange=all_reduce())
        >>> trajectory(Algorithm((rule,), name="chosen", planner=by_model_size()), [[1.0, 3.0]] * 5)
        tensor([[ 1.,  3.],
                [ 2.,  6.],
                [ 6.,  6.],
                [ 8.,  8.],
                [10., 10.]])
    """

    role: ClassVar[str] = "planner"
    declares: ClassVar[type[PlannerFacts]] = PlannerFacts

    @property
    @abstractmethod
    def facts(self) -> PlannerFacts:
        """What it declares."""

    @property
    def coders(self) -> tuple[Compressor, ...]:
        """The compressors among which it chooses, whose speed is to be measured."""
        return ()

    @abstractmethod
    def choose(self, measured: Measured) -> tuple[Any, str]:
        """The algorithm, as YAML has it or made in Python, and why, in one short line.

        It must depend on nothing else than `measured`, so that all ranks choose the same.
        """
