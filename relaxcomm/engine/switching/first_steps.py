"""What the first steps of a run are like, for an algorithm that is chosen by it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.optim import Optimizer

from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.planner.link_probes import measure_link, now
from relaxcomm.planner.measuring import measure_coders
from relaxcomm.primitives.exchanges.exchange_for import exchange_for
from relaxcomm.roles.planner import Measured
from relaxcomm.step.bound import Bound

# How torch's Adam, Adamax, Adagrad, RMSprop, Adadelta and their like name an entry's usual size.
_ENTRY_SIZES = frozenset({"exp_avg_sq", "exp_inf", "sum", "square_avg"})
_NORMAL = 1.4826  # median deviations in a standard deviation


class FirstSteps:
    """Times the first steps of an algorithm that has a planner."""

    def __init__(self, bound: Bound) -> None:
        self._bound, self._world = bound, bound.world
        self.step_times: list[tuple[float, float]] = []
        """Seconds of the steps so far but the first, which makes what later ones only use, and this thread's
        processor seconds in them."""
        self._last: tuple[float, float] | None = None  # when the last step ended

    def resume(self, step_times: Iterable[Sequence[float]]) -> None:
        """Go on timing steps where a run was that has timed so many."""
        self.step_times, self._last = [(wall, busy) for wall, busy in step_times], None

    def step_ends(self) -> None:
        """Time a step."""
        if self._bound.algorithm.planner is None:
            return
        end, busy = now(self._bound), self._world.transport.processor_seconds()
        # Only the last of the steps may have an exchange in it.
        if self._last is not None and not self._bound.state.exchanged:
            self.step_times.append((end - self._last[0], busy - self._last[1]))
        self._last = end, busy

    def stop(self) -> None:
        """Time no more; a rank that timed nothing has been no slower than the others."""
        self.step_times, self._last = self.step_times or [(0.0, 0.0)], None

    def are_over(self, ahead: int = 0) -> bool:
        """Whether enough steps are timed, or will be in so many steps."""
        planner = self._bound.algorithm.planner
        timed = bool(self.step_times)
        return planner is not None and timed and self._bound.clock.step + ahead >= planner.facts.after_steps

    def measure(self) -> Measured:
        """The slowest worker's step and the slowest link; every rank calls this in the same step."""
        replica = self._bound.replica
        times, busy = [wall for wall, _ in self.step_times], sum(busy for _, busy in self.step_times)
        usual = statistics.median(times)
        jitter = _NORMAL * statistics.median(abs(one - usual) for one in times)
        link = measure_link(self._bound, self._largest)
        items = replica.parameters  # what shards count for is the same on all ranks, which decide alike
        # A worker whose GradScaler skipped all steps so far keeps nothing yet.
        keeps_sizes = float(any(map(_is_adaptive, replica.optimizers)))
        crowding = sum(times) / busy if busy and replica.device.type == "cpu" else 0.0
        usual, jitter, keeps_sizes, crowding, *coding = self._largest(
            [usual, jitter, keeps_sizes, crowding, *self._coding()]
        )
        return Measured(
            step_seconds=usual,
            jitter_seconds=jitter,
            num_parameters=sum(-(-item.parameter.numel() // item.num_shards) for item in items),
            parameter_bytes=sum(item.share_bytes for item in items),
            world_size=self._world.size,
            latency_seconds=link.latency_seconds,
            bytes_per_second=link.bytes_per_second,
            adaptive_optimizer=keeps_sizes > 0,
            num_buckets=len(self._bound.plan.buckets or ()) or 1,
            crowding=crowding,
            coding=tuple(zip(coding[::2], coding[1::2], strict=True)),
        )

    def _coding(self) -> Iterator[float]:
        """Base and entry seconds of each of the planner's coders on this rank's device.

        On a CPU those that runs beside others were seen to take, so that virtual time decides alike again.
        """
        planner, device = self._bound.algorithm.planner, self._bound.replica.device
        for coder in () if planner is None else planner.coders:
            speeds = Speeds.usual(device.type)
            if device.type == "cuda":
                speeds = measure_coders([(exchange_for(coder), coder)], self._world.size, device)
            yield speeds.coding_base_seconds
            yield speeds.coding_entry_seconds

    def _largest(self, mine: list[float]) -> list[float]:
        """The largest of each of several numbers, over all workers, in one message."""
        numbers = torch.tensor(mine, dtype=torch.float64)
        found: list[float] = self._bound.agreements.decide("probe", numbers, self._bound.common_step).tolist()
        return found


def _is_adaptive(optimizer: Optimizer) -> bool:
    """By what it keeps of each parameter, which those of other libraries call alike."""
    return any(not _ENTRY_SIZES.isdisjoint(state) for state in optimizer.state.values())
