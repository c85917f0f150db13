"""What the first steps of a run are like, for an algorithm that is chosen by it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.optim import Optimizer

from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.network.operations import AllReduce, Label
from relaxcomm.planner.measuring import measure_coders
from relaxcomm.primitives.exchanges.exchange_for import exchange_for
from relaxcomm.roles.planner import Measured
from relaxcomm.step.bound import Bound

_SMALL_BYTES, _LARGE_BYTES = 1 << 16, 1 << 22
_PROBE_SECONDS = 0.02  # what a probe of the link has to take
# How torch's Adam, Adamax, Adagrad, RMSprop, Adadelta and their like name an entry's usual size.
_ENTRY_SIZES = frozenset({"exp_avg_sq", "exp_inf", "sum", "square_avg"})
_NORMAL = 1.4826  # median deviations in a standard deviation


class FirstSteps:
    """Times the first steps of an algorithm that has a planner.

    Args:
        bound: the algorithm on a model.
    """

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
        now, busy = self._now(), self._world.transport.processor_seconds()
        # Only the last of the steps may have an exchange in it.
        if self._last is not None and not self._bound.state.exchanged:
            self.step_times.append((now - self._last[0], busy - self._last[1]))
        self._last = now, busy

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
        few = 4 * 2 * self._world.size  # bytes: of fewer entries than a ring has messages Gloo makes no ring
        latency = self._largest(min(self._probe(few) for _ in range(5)))
        coding = self._largest_of(list(self._coding()))
        items = replica.parameters  # what shards count for is the same on all ranks, which decide alike
        return Measured(
            step_seconds=self._largest(usual),
            jitter_seconds=self._largest(jitter),
            num_parameters=sum(-(-item.parameter.numel() // item.num_shards) for item in items),
            parameter_bytes=sum(item.share_bytes for item in items),
            world_size=self._world.size,
            latency_seconds=latency,
            bytes_per_second=self._speed(latency),
            # A worker whose GradScaler skipped all steps so far keeps nothing yet.
            adaptive_optimizer=self._largest(any(map(_is_adaptive, replica.optimizers))) > 0,
            num_buckets=len(self._bound.plan.buckets or ()) or 1,
            crowding=self._largest(sum(times) / busy if busy and replica.device.type == "cpu" else 0.0),
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

    def _now(self) -> float:
        device = self._bound.replica.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self._world.transport.now()

    def _speed(self, latency: float) -> float:
        """Bytes a second on the slowest link."""
        num_bytes, seconds = _SMALL_BYTES, 0.0
        while seconds < _PROBE_SECONDS and num_bytes < _LARGE_BYTES:
            # Links let a burst pass faster than they can go on, so a probe has to take a while.
            num_bytes *= 2
            seconds = self._largest(self._probe(num_bytes))
        sent = self._world.transport.traffic(AllReduce(self._message(num_bytes)))[0]
        return sent / max(seconds - latency, 1e-9) if sent else math.inf

    def _largest(self, mine: float) -> float:
        """Of all workers' numbers."""
        return self._largest_of([mine])[0]

    def _largest_of(self, mine: list[float]) -> list[float]:
        """The same of several in one message; none of no numbers."""
        if not mine:
            return []
        numbers = torch.tensor(mine, dtype=torch.float64)
        found: list[float] = self._bound.agreements.decide("probe", numbers, self._bound.common_step).tolist()
        return found

    def _probe(self, num_bytes: int) -> float:
        begin = self._now()
        self._world.run(AllReduce(self._message(num_bytes)), Label(self._bound.common_step, "probe"))
        return self._now() - begin

    def _message(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes // 4, device=self._bound.replica.device)


def _is_adaptive(optimizer: Optimizer) -> bool:
    """By what it keeps of each parameter, which those of other libraries call alike."""
    return any(not _ENTRY_SIZES.isdisjoint(state) for state in optimizer.state.values())
