"""Shows a run: as metrics to whoever asks, and as lines of the run log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from threading import Lock
from typing import Any
from weakref import WeakSet

import torch.distributed as dist
from prometheus_client import CollectorRegistry
from torch import Tensor

from relaxcomm.engine.reporting.run_lines import RunLines
from relaxcomm.errors import UsageError
from relaxcomm.fields.validation import shown
from relaxcomm.monitoring.addresses import name_run, open_exporter, open_exporters, own_target, seen_from
from relaxcomm.monitoring.collector import Labelled, RunCollector, check_name
from relaxcomm.monitoring.exporter import Exporter, Target
from relaxcomm.monitoring.metrics_settings import MetricsConfig
from relaxcomm.monitoring.run_log import log_path
from relaxcomm.monitoring.snapshot import Snapshot
from relaxcomm.network.byte_counters import EVALUATION
from relaxcomm.network.generations import Generation
from relaxcomm.step.bound import Bound

_lock = Lock()


class Metering:
    """The exporter and the run log of one rank; made on every rank at the same time.

    Args:
        bound: what is shown.
        settings: None for neither.
        folder: of the run log, or None.
        joined: of a worker that has joined later, its number and the run's name; None for the others.
    """

    def __init__(
        self,
        bound: Bound,
        settings: MetricsConfig | None,
        folder: str | None,
        *,
        joined: tuple[int, str] | None = None,
    ) -> None:
        self._bound = bound
        self._membership = bound.world.membership  # which a closed transport has no more
        self.registry = CollectorRegistry(auto_describe=False)
        self._collector = RunCollector(self.snapshot)
        self.registry.register(self._collector)
        self._known: set[str] = set()
        self._settings = settings
        self._exporter: Exporter | None = None
        self.target: Target | None = None
        """Where others find what this rank shows."""
        self._lines = RunLines()
        self.url: str | None = None
        self.name = ""
        """The value of the label `run`."""
        if settings is None:
            return
        bound.norms.enabled = True
        number, self.name = joined or (bound.world.process.rank, self._agree_on_name(settings))
        self._exporter = self._open_exporter(number, settings, joins=joined is not None)
        if self._exporter is not None:
            self.url = self._exporter.url
            self.target = own_target(self._exporter, settings, number)
        if settings.log and folder is not None:
            self._lines.open(log_path(folder, self.name, number), self.name, bound, settings.log_bytes)

    def _agree_on_name(self, settings: MetricsConfig) -> str:
        """The name that rank 0 gives the run; every rank calls it."""
        world = self._bound.world
        return world.gather_all("" if world.process.rank else self._name_run(settings), "attach()")[0]

    def _open_exporter(self, number: int, settings: MetricsConfig, *, joins: bool) -> Exporter | None:
        """The exporter of this rank, if there is to be one; every rank calls it, and one that joins alone."""
        shown, world = CollectorRegistry(auto_describe=False), self._bound.world
        shown.register(Labelled(self.registry, {"rank": str(number), "run": self.name}))
        if joins:
            return None if settings.port is None else open_exporter(settings, number, shown, self.name)
        # Ranks whose settings differ in this must not leave the others waiting.
        if None in world.gather_all(settings.port, "attach()"):
            return None
        return open_exporters(settings, world.transport, shown, self.name)

    def _name_run(self, settings: MetricsConfig) -> str:
        """A name that no open engine of this process has: two share a folder, and may share a second."""
        first_rank = dist.get_rank() if dist.is_initialized() else 0
        with _lock:
            taken = {one.name for one in _open}
            self.name = name_run(settings, self._bound.algorithm.name, taken, first_rank=first_rank)
            _open.add(self)
        return self.name

    def follow(self, bound: Bound) -> None:
        """Show another algorithm in the place of the one before, before any of its rules has exchanged."""
        # What the rules so far have moved is counted by their primitives: others get their numbers.
        counters, flights = bound.world.transport.counters, bound.world.statistics.in_flight
        counters.by_rule = self._by_primitive(counters.by_rule)
        flights.by_rule = self._by_primitive(flights.by_rule)
        latest = bound.world.statistics.latest
        for name in latest.keys() - self._known - {"batch_size"}:
            del latest[name]  # of the algorithm before, such as how far apart its replicas were
        self._bound = bound
        self._lines.switched(bound)

    def restored(self) -> None:
        """A state was loaded: counters are those of that, and may have fallen."""
        self._collector.begin_anew()

    def go_on_with(self, bound: Bound, generation: Generation, targets: Sequence[Target | None]) -> None:
        """Show the same algorithm among other ranks, when some are lost or have joined.

        Args:
            bound: the algorithm among them.
            generation: who they are.
            targets: where each of them shows something, in rank order.
        """
        if self._exporter is not None and self.target is not None and self._settings is not None:
            is_first = bound.world.rank == 0
            self._exporter.targets = seen_from(self.target, targets, self._settings) if is_first else ()
        self._bound, self._membership = bound, bound.world.membership
        self._lines.ranks_changed(bound, generation)

    def observe(self, values: Mapping[str, float | Tensor]) -> None:
        """Keep the latest values of what the training program measures."""
        for name, value in values.items():
            if name not in self._known:
                check_name(name)
                self._known.add(name)
            self._bound.world.statistics.latest[name] = _number(name, value)

    def observe_evaluation(self, measures: Mapping[str, float | Tensor]) -> None:
        """Keep the latest evaluation, and write a line of each."""
        known = {name: _number(name, value) for name, value in measures.items()}
        self._bound.world.statistics.evaluations.update(known)
        self._lines.evaluated(self._bound, known)

    def snapshot(self) -> Snapshot:
        """The run as it is now; also called from other threads."""
        bound, seen = self._bound, self._bound.world.statistics
        moved = self._by_primitive(bound.world.transport.counters.by_rule)
        evaluation = moved.pop(EVALUATION, (0, 0))
        return Snapshot(
            algorithm=bound.algorithm.name,
            keeps_step=bound.plan.keeps_step,
            world_size=self._membership.world_size,
            steps=seen.steps,
            synchronisations=seen.synchronisations,
            last_synchronisation=seen.last_synchronisation,
            samples=seen.samples,
            bytes_uncompressed=seen.bytes_uncompressed,
            bytes_moved=moved,
            evaluation_bytes=evaluation,
            exchanges=self._by_primitive(seen.in_flight.by_rule),
            step_bounds=seen.step_times.bounds,
            step_counts=tuple(seen.step_times.counts),
            step_seconds=seen.step_times.total,
            exposed_seconds=seen.exposed_seconds,
            hidden_seconds=seen.hidden_seconds,
            callback_seconds=seen.busy_seconds,
            triggers=self._triggers(),
            values=self._values(),
            evaluations=dict(seen.evaluations),
        )

    def close(self, status: str) -> None:
        """Write the summary and stop answering."""
        with _lock:
            _open.discard(self)
        if self._lines.are_open:
            self._lines.close(status, self.snapshot())
        if self._exporter is not None:
            self._exporter.close()
        self._exporter = None

    def ending(self) -> Callable[[str], None]:
        """What writes the summary of the run as it is now, and holds nothing of it."""
        return partial(self._lines.close, last=self.snapshot())

    def synchronised(self) -> None:
        """Something was exchanged."""
        if self._lines.are_open:
            self._lines.synchronised(self._bound, self._triggers(), self._values())

    def _triggers(self) -> dict[str, tuple[float | Tensor, float]]:
        """What the voting triggers compared, by the first rule that has each."""
        rules = [rule.trigger for rule in self._bound.algorithm.rules]
        found: dict[str, tuple[float | Tensor, float]] = {}
        for trigger, slots in self._bound.votes.slots.items():
            measured = trigger.measured(slots)
            if measured is not None:
                found[str(rules.index(trigger))] = measured
        return found

    def _values(self) -> dict[str, float | Tensor]:
        """The latest values; how late what is applied is only where it can be late."""
        late = max((r.delay for r in self._bound.algorithm.rules if isinstance(r.delay, int)), default=0)
        return {**({"staleness_steps": late} if late else {}), **self._bound.world.statistics.latest}

    def _by_primitive(self, by_rule: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
        """Pairs of numbers, which rules with the same exchange share."""
        found: dict[str, tuple[Any, Any]] = {}
        for name, (first, second) in dict(by_rule).items():
            if name.isdigit():
                primitive = type(self._bound.algorithm.rules[int(name)].exchange).__name__
            else:
                primitive = name.replace(" ", "_")
            before = found.get(primitive, (0, 0))
            found[primitive] = before[0] + first, before[1] + second
        return found


_open: WeakSet[Metering] = WeakSet()
"""The meterings of this process that name a run, and have not ended."""


def _number(name: str, value: Any) -> float | Tensor:
    """What was observed, if it is one number; of a tensor a copy, since the program may add to it later."""
    if isinstance(value, Tensor) and value.numel() == 1 and not (value.is_complex() or value.is_meta):
        return value.detach().clone()
    is_array = getattr(value, "size", 0) == 1 and callable(getattr(value, "item", None))  # NumPy's, JAX's
    number = value.item() if is_array else value
    try:
        as_float = float(number) if isinstance(number, Real) else None
    except OverflowError:
        raise UsageError(f"{name} is to be observed, but is too large for a float: {shown(value)}") from None
    if as_float is not None:
        return number if isinstance(number, int) else as_float  # JSON knows no fractions
    shape = None if is_array else getattr(value, "shape", None)
    what = shown(number) if shape is None else f"{type(value).__name__} of shape {list(shape)}"
    raise UsageError(f"{name} is to be observed, but is no number: {what}; reduce it first")
