"""One task on its way: read, exchange, finalize, move by the outer optimizer, write."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from relaxcomm.roles import Context, State
from relaxcomm.roles.outer import applied
from relaxcomm.roles.payload import finalized, read
from relaxcomm.step.bound import Bound
from relaxcomm.step.clock import ContextOf
from relaxcomm.step.device_flags import PutIn
from relaxcomm.step.flight import Flight, Landed, Pipeline, Program, labelled
from relaxcomm.step.frozen_since import AtRest, at_rest_alone, keep_at_rest
from relaxcomm.step.plan import Task
from relaxcomm.step.replica_norms import Side
from relaxcomm.step.state import RuleState
from relaxcomm.step.world import World
from relaxcomm.tensors.unshared import UnsharedState


class Transfer:
    """What becomes of one task: the only code that brings a result into a model.

    Args:
        task: a rule on a bucket.
        slots: of its primitives.
        context: what they may know now, whenever it is called.
        world: over which it goes.
        step: in which it is read.
        round: how often the rule has exchanged the bucket before.
        samples: that this rank has trained on since.
    """

    def __init__(
        self,
        task: Task,
        slots: RuleState,
        context: ContextOf,
        world: World,
        *,
        step: int,
        round: int,
        samples: int = 1,
    ) -> None:
        self.task, self.slots = task, slots
        self._context, self._world = context, world
        self.counts = round, samples
        self._read_in = context(task.rule, task, *self.counts)
        self._flight: Flight | None = None
        self._message: Tensor | None = None
        self.due: float = task.rule.due(step)
        """The step in which the result is applied; infinity if that is when it has come."""
        self.sent: int | None = step if task.rule.delay else None
        """The step in which it was sent, if it is late and no checkpoint lies between."""
        self.snapshot: Tensor | None = None
        self.is_overtaken = False
        """Whether other parameters were loaded since it was read, which the result is not to move."""
        self.side: Side | None = None
        """This rank's side, to be compared with the result, if the distance between replicas is taken."""
        self.used: Tensor | None = None
        """Which parameters some rank had a gradient for, where a late message does not say it."""
        self.uses_all = False
        """Whether this rank is known to have had a gradient for each, so that nobody has to look."""
        self.not_finite: tuple[str, ...] = ()
        """What this rank has put in that was not finite, where that was looked at on the host."""
        self.put_in: PutIn | None = None
        """The same where it was looked at on a GPU."""

    @classmethod
    def of(cls, bound: Bound, task: Task, *, round: int, samples: int = 1) -> Transfer:
        """One of an engine's algorithm, read in the step of its clock."""
        slots, clock = bound.state.of(task), bound.clock
        return cls(task, slots, clock.context, bound.world, step=clock.step, round=round, samples=samples)

    @classmethod
    def landed(
        cls,
        bound: Bound,
        task: Task,
        *,
        due: float,
        counts: Sequence[int],
        result: Tensor,
        snapshot: Tensor | None = None,
    ) -> Transfer:
        """One that a checkpoint has saved with its result, in memory of its own: it may be loaded again."""
        (round, samples), device = counts, task.bucket.device
        made = cls.of(bound, task, round=round, samples=samples)
        made._flight, made.due, made.sent = Landed(result.to(device, copy=True)), due, None
        made.snapshot = None if snapshot is None else snapshot.to(device, copy=True)
        return made

    def measure_own(self) -> Tensor:
        """What the payload wants to know before anything is read."""
        return self.task.rule.payload.measure(self._read_in, self.task.bucket, self.slots["payload"])

    def know(self, measured: Tensor) -> None:
        """Tell the payload sums of what `measure_own` has found."""
        self._read_in = self._read_in.at(measured=measured)

    def read(self, out: Tensor) -> Tensor:
        """Fill `out` (`[numel]`) with what is exchanged, and return it."""
        return read(self.task.rule.payload, self._read_in, self.task.bucket, self._kept("payload", out), out)

    def read_or_leave(self, out: Tensor) -> Tensor:
        """The same, but leave it to the compressor where that makes what it encodes, one pass less."""
        rule, bucket = self.task.rule, self.task.bucket
        if rule.exchange.takes_difference(rule.compressor, out):
            difference = rule.payload.difference(self._read_in, bucket, self.slots["payload"])
            if difference is not None:
                self._read_in = self._read_in.at(difference=difference)
                return out
        return self.read(out)

    def exchange(self, message: Tensor, *, divided: bool = False) -> Program:
        """The operations of the exchange of `message`, which it may overwrite; returns the result.

        Args:
            message: what was read, perhaps with more entries behind it.
            divided: whether it is divided by the number of ranks already.
        """
        rule, self._message = self.task.rule, message
        cx = self._read_in.at(divided=True) if divided else self._read_in
        running = rule.exchange.run(cx, message, rule.compressor, self._kept("compressor", message))
        return (yield from labelled(self.task.label, rule, running, message.numel()))

    def launch(
        self,
        program: Program,
        step: int,
        pipeline: Pipeline | None = None,
        *,
        snapshot: Tensor | None = None,
        not_finite: Sequence[str] | PutIn = (),
    ) -> None:
        """Send it off.

        Args:
            program: whose operations.
            step: of their labels.
            pipeline: of others that go beside it.
            snapshot: what the parameters are now, if the result comes late.
            not_finite: what this rank puts in that is not finite, or how to learn that from a GPU.
        """
        bucket, world = self.task.bucket, self._world
        operations = self.task.operations(world.membership.world_size, world.topology)
        self.snapshot = snapshot
        if isinstance(not_finite, PutIn):
            self.put_in = not_finite
        else:
            self.not_finite = tuple(not_finite)
        self._flight = Flight(program, world, step=step, unit=bucket.index, operations=operations)
        if pipeline is None:
            self._flight.launch()
        else:
            pipeline.launch(self._flight, bucket.nbytes)

    @property
    def flight(self) -> Flight:
        """The exchange on its way."""
        assert self._flight is not None, "it is launched first"
        return self._flight

    @property
    def result(self) -> Tensor:
        """What the exchange has brought."""
        return self.flight.result

    def goes_on(self, step: int) -> bool:
        """Whether its next operation is issued in `step`: each has an equal share of the delay to hide in."""
        if self.sent is None or math.isinf(self.due):
            return False
        return self.flight.is_behind((step - self.sent) / (self.due - self.sent))

    def finalize(self, result: Tensor) -> Tensor:
        """Make a combined result into the payload's."""
        payload, cx = self.task.rule.payload, self._applied_in()
        return finalized(payload, cx, self.task.bucket, self._kept("payload", result), result)

    def measure(self, finalized: Tensor) -> Tensor:
        """What the outer optimizer wants to know before anything is written."""
        cx, bucket = self._applied_in(), self.task.bucket
        return self.task.rule.outer.measure(cx.at(extra=self.result[bucket.numel :]), bucket, finalized)

    def apply(
        self,
        finalized: Tensor,
        *,
        measured: Tensor | None = None,
        resting: AtRest = (),
        into: Tensor | None = None,
        good: bool | Tensor = True,
    ) -> Tensor:
        """Move by the outer optimizer, and write.

        Args:
            finalized: what `finalize` has made.
            measured: sums of what `measure` has found.
            resting: the frozen parameters that all ranks leave where they are.
            into: where the value goes, `[numel]`, where that is not its own memory.
            good: whether to write at all; a tensor decides on its device, without waiting for it.

        Returns: what was written.
        """
        rule, bucket, cx = self.task.rule, self.task.bucket, self._applied_in()
        payload = self._kept("payload", *(() if into is None else (into,)))  # other memory is its to keep
        base = rule.payload.base(cx, bucket, payload)
        value = finalized if base is None else finalized.to(base.dtype)
        # Nobody else looks any more at the memory that this was sent from.
        is_own = self._message is not None and value.data_ptr() == self._message.data_ptr()
        cx = cx.at(measured=measured, out=value if good is True and is_own else None)
        if rule.exchange.facts.returns != "base":
            resting = resting or at_rest_alone(self.task, value, base)
            value = applied(rule.outer, cx, bucket, self._kept("outer", value), value, base)
            value = keep_at_rest(bucket, resting, base, value)
        if into is not None:
            value = into if value.data_ptr() == into.data_ptr() else into.copy_(value)
        if isinstance(good, Tensor):
            value = torch.where(good, value, self._before().to(value.dtype))
        if not self.is_overtaken:
            rule.payload.write(cx, bucket, payload, value, self.snapshot)
        return value

    def _kept(self, role: str, *lent: Tensor) -> State:
        """The slots of a primitive, while it is lent memory that is written into later."""
        if role not in self.slots.slotted:
            return self.slots[role]
        return UnsharedState(self.slots[role], *lent, self.task.bucket)

    def _applied_in(self) -> Context:
        """What primitives may know when a result is applied: as when it was read, or of now if it is late."""
        task = self.task
        return self._context(task.rule, task, *self.counts) if task.rule.delay else self._read_in

    def _before(self) -> Tensor:
        """What the result takes the place of."""
        if self.snapshot is not None:
            return self.snapshot
        out, facts = self.task.bucket.temporary(), self.task.rule.payload.facts
        is_there = facts.moves_model or facts.site == "backward"
        return self.task.bucket.gather(out) if is_there else self.read(out)

    def commit(self, good: bool | Tensor) -> None:
        """Keep what the primitives have written to their slots, or drop it."""
        self.slots.commit(good)
