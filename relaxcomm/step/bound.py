"""An algorithm bound to a model and the ranks: the parts that its exchanges share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.network.operations import AllReduce
from relaxcomm.replica.replica import Replica
from relaxcomm.roles import Context
from relaxcomm.step.agreements import Agreements
from relaxcomm.step.bucket_filling import fill_buckets
from relaxcomm.step.clock import Clock
from relaxcomm.step.controllers import Controllers
from relaxcomm.step.device_flags import DeviceFlags
from relaxcomm.step.plan import Plan, Task
from relaxcomm.step.replica_norms import ReplicaNorms
from relaxcomm.step.state import State
from relaxcomm.step.votes import Votes
from relaxcomm.step.world import World
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.memory_order import Strides


class Bound:
    """The leaves that an algorithm's exchanges are made of; a switch to another algorithm makes new ones.

    Args:
        algorithm: for this model, see `Algorithm.over`.
        replica: what is trained.
        world: the ranks.
        norms: of the replica, taken now and then.
    """

    def __init__(self, algorithm: Algorithm, replica: Replica, world: World, norms: ReplicaNorms) -> None:
        values: dict[str, float] = {}
        self.algorithm, self.replica, self.world, self.norms = algorithm, replica, world, norms
        self.plan = Plan(algorithm, replica.parameters)
        self.state = State(world)
        self.agreements = Agreements(world)
        self.flags = DeviceFlags(world, replica)
        self.votes = Votes(self.plan.votes, replica, world, self.agreements)
        self.controllers = Controllers(algorithm, replica, values, self.agreements)
        self.clock = Clock(replica, world, values, self.votes.decided)
        self.uncompressed_bytes = 0
        """What BSP in full precision sends in a step."""
        if not algorithm.at("backward"):  # which says in what order
            self.lay_out([item.name for item in replica.parameters])

    def lay_out(self, order: Sequence[str]) -> None:
        """Build the buckets in an order that all ranks have agreed on, and the state of every rule."""
        replica, size = self.replica, self.world.size
        self.lay_out_as(fill_buckets(replica.parameters, order, self.algorithm, replica.bucket_bytes, size))

    def lay_out_as(
        self, names: Sequence[Sequence[str]], strides: Sequence[Sequence[Strides]] | None = None
    ) -> None:
        """Build buckets that hold just these parameters, see `Plan.lay_out`, and the state of every rule."""
        buckets = self.plan.lay_out(names, strides)
        self.state.set_up(self.plan, self.clock.context)
        shapes = [torch.empty(bucket.numel, dtype=bucket.dtype, device="meta") for bucket in buckets]
        self.uncompressed_bytes = sum(self.world.transport.traffic(AllReduce(one))[0] for one in shapes)

    def lay_out_like(self, buckets: Sequence[Bucket]) -> None:
        """The same for the parameters of these, as they lie there."""
        self.lay_out_as([bucket.names for bucket in buckets], [bucket.strides for bucket in buckets])

    def buffer_tasks(self, index: int) -> list[Task]:
        """The tasks that average buffers together with a rule of parameters, by its index."""
        return self.plan.for_buffers(index, self.replica.buffers.statistics(), self.replica.bucket_bytes)

    def context(self, index: int) -> Context:
        """What the primitives of a rule may know now, by its index."""
        return self.clock.context(self.algorithm.rules[index])

    @property
    def order(self) -> list[str]:
        """Names of the parameters as they lie in buckets, before there are any as they were registered."""
        buckets = self.plan.buckets
        if buckets is None:
            return [item.name for item in self.replica.parameters]
        return [name for bucket in buckets for name in bucket.names]

    @property
    def replicas_may_differ(self) -> bool:
        """Whether an average may change what ranks hold."""
        return self.algorithm.lets_replicas_differ or bool(self.replica.buffers)

    def meet(self, event: str) -> None:
        """Go on when all ranks have come to an event, in the same step where they keep step.

        Raises: CommunicationError, on all ranks, if one is elsewhere.
        """
        self.world.meet(event, self.event_step)

    @contextmanager
    def meeting(self, event: str) -> Iterator[None]:
        """All ranks meet: before what is done inside, or after it where who is early is asked until then."""
        if self.plan.keeps_step:
            self.meet(event)
        yield
        if not self.plan.keeps_step:
            self.meet(event)

    def progress(self, next_step: int, *, in_round: bool) -> int:
        """How far this rank has come, to compare with others.

        Args:
            next_step: the clock when its step is over.
            in_round: whether an exchange that an event has begun is not over.

        Returns: the step, or the rounds that are over where ranks have clocks of their own.
        """
        if self.plan.keeps_step or not self.algorithm.is_collective:
            return next_step
        return max(self.state.rounds.values(), default=0) - in_round

    @property
    def event_step(self) -> int | None:
        """The step in which all ranks meet; None where each has a clock of its own."""
        return self.clock.step if self.plan.keeps_step else None

    @property
    def common_step(self) -> int:
        """The step that labels what all ranks do together; 0 where each has a clock of its own."""
        return self.clock.step if self.plan.keeps_step else 0
