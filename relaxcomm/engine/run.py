"""What all parts of the engine share: the model, the rules, the clock, the layout and the state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from relaxcomm.composition.algorithm import Algorithm, Rule
from relaxcomm.config import DriftGuard
from relaxcomm.engine.assignment import Assignment, assign
from relaxcomm.engine.control import Control
from relaxcomm.engine.drift import Drift
from relaxcomm.engine.flights import Program
from relaxcomm.engine.micro import Accumulation
from relaxcomm.engine.model import param_groups
from relaxcomm.engine.roster import Roster
from relaxcomm.engine.samples import Samples
from relaxcomm.engine.slots import RuleState
from relaxcomm.engine.statistics import Statistics
from relaxcomm.engine.votes import Votes
from relaxcomm.errors import UsageError
from relaxcomm.network.operations import Agree, AllReduce, Label
from relaxcomm.network.transport import Pending, Service, Transport
from relaxcomm.roles import Context, Seen
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.topology import Topology


class Run:
    """One attached training run on one rank."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        algorithm: Algorithm,
        transport: Transport,
        *,
        scaler: GradScaler | None,
        bucket_bytes: int,
        topology: Topology,
        drift_guard: DriftGuard | None = None,
        statistics: Statistics | None = None,
        roster: Roster | None = None,
    ) -> None:
        self.model, self.optimizers, self.algorithm = model, tuple(optimizers), algorithm
        self.transport, self.scaler, self.bucket_bytes = transport, scaler, bucket_bytes
        self.topology = topology
        self.statistics = statistics or Statistics(transport.counters)
        self.drift_guard = drift_guard
        self.step = 0
        self.exchanged = False  # something was exchanged in this step
        self.synchronised = False  # a backward of this step was exchanged
        self.unsynchronised = False  # a backward of this step ran under no_sync
        self.paused = False
        self.follows_loader = False
        self.client_states: dict[int, list[defaultdict[Tensor, Any]]] = {}
        self.event: str | None = None
        self.gradient_scale: Tensor | None = None
        self.roster = roster or Roster(model, self.optimizers)
        self.parameters, self.frozen = self.roster.trained, self.roster.frozen
        self._assignment: Assignment | None = None
        self.state: dict[tuple[int, int], RuleState] = {}
        self.rounds: dict[tuple[int, int], int] = {}
        self.services: dict[tuple[int, int], Service] = {}
        self._uncompressed_bytes = 0
        self.samples = Samples(self)
        self.on_synchronised: Callable[[], None] | None = None
        self.drift = Drift(self, drift_guard)
        self.votes = Votes(self)
        self.control = Control(self)
        self.micro = Accumulation(self.parameters) if self.control.watches_micro_gradients else None
        if not algorithm.at("backward"):
            self.lay_out([item.name for item in self.parameters])

    def succeeded_by(self, algorithm: Algorithm) -> Run:
        """A run of another algorithm on the same model; its clock begins at 0, the statistics go on."""
        new = Run(
            self.model,
            self.optimizers,
            algorithm,
            self.transport,
            scaler=self.scaler,
            bucket_bytes=self.bucket_bytes,
            topology=self.topology,
            drift_guard=self.drift_guard,
            statistics=self.statistics,
            roster=self.roster,
        )
        new.paused = self.paused  # a switch before a forward may lie inside no_sync()
        return new

    def lay_out(self, order: Sequence[str]) -> list[Bucket]:
        """Build the buckets in an order that all ranks have agreed on, and the state of every rule."""
        return self.lay_out_as(assign(self.parameters, order, self.algorithm, self.bucket_bytes))

    def lay_out_as(self, names: Sequence[Sequence[str]]) -> list[Bucket]:
        """Build buckets that hold just these parameters, and the state of every rule."""
        self._assignment = Assignment(self.parameters, names, self.algorithm)
        for bucket in self._assignment.buckets:
            for index in self.rules_of(bucket):
                self._set_up(index, bucket)
        self._uncompressed_bytes = sum(self._dense_bytes(bucket) for bucket in self._assignment.buckets)
        return self._assignment.buckets

    def _set_up(self, index: int, bucket: Bucket) -> None:
        """Make the state, and the service if there is one, of a rule for a bucket."""
        rule, place = self.algorithm.rules[index], (index, bucket.index)
        self.state[place] = RuleState(rule, bucket, self.transport.membership)
        self.rounds.setdefault(place, 0)
        served = rule.exchange.serve(self.context(rule), bucket, rule.compressor)
        if served is not None and place not in self.services:
            self.services[place] = served.service
            self.transport.serve((str(index), bucket.index), served.service, served.request, served.reply)

    def take_rest(self) -> None:
        """Add to the parameters what services still hold for this rank, when nobody asks them any more."""
        for (_, unit), service in self.services.items():
            rest = service.rest()
            if rest is not None and self.buckets is not None:
                bucket = self.buckets[unit]
                bucket.add(rest.to(bucket.device, bucket.dtype))

    @property
    def buckets(self) -> list[Bucket] | None:
        """The buckets; None before the layout is made."""
        return None if self._assignment is None else self._assignment.buckets

    def rules_of(self, bucket: Bucket) -> tuple[int, ...]:
        """Indices of the rules that cover a bucket."""
        assert self._assignment is not None, "a bucket is of an assignment"
        return self._assignment.rules_of[bucket.index]

    def covered(self, index: int) -> list[Bucket]:
        """The buckets that a rule covers; none before the layout is made."""
        return [] if self._assignment is None else self._assignment.covered[index]

    def firing(self, rule: Rule, bucket: Bucket) -> bool:
        """Whether a rule exchanges a bucket in this step."""
        return rule.is_active(self.step) and rule.trigger.fires(self.context(rule), bucket)

    def context(self, rule: Rule, round: int = 0) -> Context:
        """What the primitives of a rule may see now."""
        return Context(
            step=self.step,
            start=rule.active[0],
            membership=self.transport.membership,
            learning_rate=self._learning_rate,
            gradient_scale=self.gradient_scale,
            values=MappingProxyType(self.control.values),
            topology=self.topology,
            event=self.event,
            round=round,
            note=self.statistics.note,
            decided=self.votes.decided,
        )

    def see(self, index: int, bucket: Bucket, local: Tensor | None, result: Tensor) -> None:
        """Show what became of a bucket to the controllers that watch a rule."""
        if self.control.watches(index):
            micro = None if self.micro is None else self.micro.seen(self.scale())
            cx = self.context(self.algorithm.rules[index])
            self.control.see(index, cx, Seen(bucket.index, local, result, micro, self.control.samples))

    def states_of(self, client: int) -> list[defaultdict[Tensor, Any]]:
        """A client's own states of the optimizers, one each."""
        return self.client_states.setdefault(client, [defaultdict(dict) for _ in self.optimizers])

    @property
    def has_exchanged(self) -> bool:
        """Whether a rule has exchanged anything since this algorithm began."""
        return any(self.rounds.values())

    @property
    def common_step(self) -> int:
        """The step that labels what all ranks do together; 0 where each has a clock of its own."""
        return self.step if self.algorithm.keeps_step else 0

    def anyone(self, bad: bool, name: str) -> Pending:
        """Ask whether something is bad on any rank."""
        return self.transport.issue(Agree(torch.tensor([float(bad)]), "max"), Label(self.common_step, name))

    def program(self, index: int, bucket: Bucket, tensor: Tensor) -> Program:
        """The exchange of one rule for one bucket, as a program that a flight runs."""
        rule, place = self.algorithm.rules[index], (index, bucket.index)
        known = self.context(rule, self.rounds[place])
        cx = replace(known, layout=bucket.layout, place=(bucket.index,))
        self.rounds[place] += 1
        return self.exchanging(str(index), rule, cx, self.state[place], tensor)

    def exchanging(self, name: str, rule: Rule, cx: Context, state: RuleState, tensor: Tensor) -> Program:
        """An exchange whose operations are labelled `name`."""
        running = rule.exchange.run(cx, tensor, rule.compressor, state["compressor"])
        try:
            operation = next(running)
            while True:
                received = yield name, operation
                operation = running.send(received)
        except StopIteration as stop:
            result: Tensor = stop.value
            return result

    def tick(self) -> None:
        """Close the step: the clock goes on."""
        self.votes.close()
        self.control.close()
        if self.micro is not None:
            self.micro.close()
        self.statistics.tick(self.exchanged, self._uncompressed_bytes)
        self.step += 1
        if self.exchanged:
            self.report()
        self.exchanged = self.synchronised = self.unsynchronised = False

    def report(self) -> None:
        """Something was exchanged: tell the run log."""
        self.samples.residual()
        if self.on_synchronised is not None:
            self.on_synchronised()

    def scale(self) -> float:
        """The GradScaler's scale as a number, or 1; on a GPU the host waits for it."""
        return 1.0 if self.gradient_scale is None else self.gradient_scale.item()

    def rewind(self, steps: int) -> None:
        """Set the clock back by steps in which nothing was trained or exchanged."""
        self.statistics.steps -= steps
        self.statistics.bytes_uncompressed -= steps * self._uncompressed_bytes
        self.step -= steps

    def check_parameters(self) -> None:
        """Raise UsageError if a parameter was unfrozen after attach."""
        for item in self.frozen:
            if item.tensor.requires_grad:
                raise UsageError(
                    f"{item.name} was frozen when the engine was attached and now requires a gradient, which "
                    "nothing would exchange; close the engine and attach again after unfreezing"
                )

    def _dense_bytes(self, bucket: Bucket) -> int:
        shape = torch.empty(bucket.numel, dtype=bucket.dtype, device="meta")
        return self.transport.traffic(AllReduce(shape))[0]

    def _learning_rate(self, bucket: Bucket) -> float | Tensor:
        groups = param_groups(self.optimizers)
        known = {id(p): float(group["lr"]) for group in groups for p in group["params"]}
        rates = [known.get(id(item.tensor), 0.0) for item in bucket.items]
        if len(set(rates)) == 1:
            return rates[0]
        sizes = torch.tensor([item.tensor.numel() for item in bucket.items])
        return torch.repeat_interleave(torch.tensor(rates, dtype=torch.float64), sizes)
