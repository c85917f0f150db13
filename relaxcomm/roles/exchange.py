"""Over what messages are combined: an exchange talks operations to the engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from torch import Tensor

from relaxcomm.errors import CompositionError
from relaxcomm.fields.frozen import stated
from relaxcomm.fields.looked_at import Looks, one_of
from relaxcomm.network.operations import Operation, Received, Request
from relaxcomm.network.transport import Membership, Service
from relaxcomm.roles.carried import Slots
from relaxcomm.roles.compressor import Compressor, Memory
from relaxcomm.roles.context import Context, Primitive, State
from relaxcomm.roles.outer import Outer
from relaxcomm.roles.stage import Awaited, Stage
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout
from relaxcomm.topology import Topology

Exchanging: TypeAlias = Generator[Operation, Received, Tensor]
"""Yields an operation, is sent what came of it, returns the result."""

OUTER = "outer."
"""Before the names of an outer's slots among what a service exports."""


@dataclass(frozen=True)
class Served:
    """A service for one bucket, with the tensors that a request to one rank and its reply look like.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Bucket, Context, Item, Membership
        >>> from relaxcomm.primitives import average, identity, server
        >>> rank = Membership(rank=0, world_size=2)
        >>> cx = Context(step=0, start=0, membership=rank, learning_rate=lambda bucket: 0.1)
        >>> bucket = Bucket(0, [Item("weight", torch.zeros(100))])
        >>> served = server(staleness=3).serve(cx, bucket, identity(), average())
        >>> served.request.shape, served.reply.shape  # bytes: a header, and half of the bucket
        (torch.Size([216]), torch.Size([216]))
    """

    service: Service
    request: Tensor
    reply: Tensor


@stated
class ExchangeFacts:
    """What an exchange declares.

    Args:
        accepts: message kinds that it can combine.
        collective: all ranks take part in each round; otherwise each goes on alone.
        same_result: every rank ends with the same tensor.
        several_rounds: all ranks see the result of a message, so that another can follow it.
        returns: a "mean" of what was put in, a "robust mean" that a worker's entries cannot move beyond what
            others have put in, "votes" or other directions, which are as large whatever was put in, or the
            payload's new "base".
        topology: it exchanges with all ranks, over a "complete" graph; over the configured "graph", or in its
            "groups".
        needs_fixed_graph: what neighbours have sent is kept, so they must stay the same.
        follows_parameters: what it keeps begins at the parameters, so that it can exchange nothing else.
        memory: whether what a message leaves out is in later ones: "none", "leaky", or "lossless".
        takes_divided: it only adds up what is divided by the number of ranks already, see `Context.divided`.
        applies_outer: its service moves the base by the rule's outer; otherwise each rank does so itself.
        slots: what it keeps, and what becomes of each slot with another number of ranks, see `Carried`.
        coding: how the compressor's slots lie among those of `coding_slots`: "whole", as they are; "inner",
            behind its own; "parts", one set for each rank's part of a bucket; or "parts and mean", one more
            of what codes the mean of this rank's part.
        service: what its service exports, and what becomes of it, likewise.

    Example:
        >>> from relaxcomm.primitives import all_reduce, gossip, server
        >>> facts = all_reduce.facts, gossip.facts, server.facts
        >>> [(one.same_result, one.returns, one.topology) for one in facts]
        [(True, 'mean', 'complete'), (False, 'mean', 'graph'), (False, 'base', 'complete')]
    """

    accepts: frozenset[str]
    collective: bool
    same_result: bool
    several_rounds: bool
    returns: Literal["mean", "robust mean", "votes", "base"]
    topology: Literal["complete", "graph", "groups"]
    needs_fixed_graph: bool
    follows_parameters: bool
    memory: Memory
    takes_divided: bool
    applies_outer: bool
    slots: Slots
    coding: Literal["whole", "inner", "parts", "parts and mean"]
    service: Slots

    @property
    def codes_parts(self) -> bool:
        """Whether each rank's part of a bucket is coded on its own."""
        return self.coding in ("parts", "parts and mean")


class Exchange(Primitive):
    """Over what and with whom messages are combined.

    Example:
        >>> from dataclasses import replace
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.plugin import AllReduce, Exchange, Stage, frozen
        >>> from relaxcomm.primitives import all_reduce, parameters
        >>> @frozen
        ... class halfway(Exchange):
        ...     facts = replace(all_reduce.facts, same_result=False, takes_divided=False)
        ...     def run(self, cx, tensor, compressor, state):
        ...         coding = compressor.encode_decode(cx, tensor.clone(), state, keep_sent=False)
        ...         message = next(coding)
        ...         mean = yield AllReduce(message.tensor, "mean")
        ...         try:
        ...             coding.send([(1.0, type(message)(mean))])
        ...         except StopIteration as stop:
        ...             return (tensor + stop.value[0]) / 2
        ...     def stages(self, world_size, topology):
        ...         return [Stage(AllReduce)]
        >>> trajectory(Rule(payload=parameters(), exchange=halfway()), [[1.0, 2.0, 6.0]])
        tensor([[2.0000, 2.5000, 4.5000]])
    """

    role: ClassVar[str] = "exchange"
    declares: ClassVar[type[ExchangeFacts]] = ExchangeFacts
    looks: ClassVar[Looks] = {
        **Primitive.looks,
        "topology_override": one_of(Topology | None, "return a topology, or None for the configured one"),
        "serve": one_of(Served | None, "return Served(service, request, reply), or None for no service"),
    }

    @property
    @abstractmethod
    def facts(self) -> ExchangeFacts:
        """What it declares."""

    @property
    def without_memory(self) -> Exchange:
        """This exchange without a memory, for what goes with the parameters, such as buffers."""
        return self

    def topology_override(self) -> Topology | None:
        """The topology that it names itself, which wins over the configured one."""
        return None

    def check_graph(self, topology: Topology, world_size: int) -> None:
        """Refuse a graph, or a number of ranks, with which this exchange would not mix all of them.

        Raises: TopologyError, saying what is wrong and what to do.
        """
        topology.check(world_size)

    def coding_slots(
        self, bucket: Bucket, compressor: Compressor, membership: Membership
    ) -> Mapping[str, Tensor]:
        """The compressor's slots for a bucket; some for each part where parts are coded on their own.

        `run` finds them beside its own, which `init` makes.
        """
        return compressor.init(bucket)

    def keeps_residuals(self, compressor: Compressor) -> bool:
        """Whether a message may hold what earlier ones have left out: of the compressor, or of a coding that
        the exchange adds."""
        return compressor.facts.memory != "none"

    def takes_difference(self, compressor: Compressor, tensor: Tensor) -> bool:
        """Whether in `run` nothing looks at `tensor` before the compressor, which makes it of
        `cx.difference`, if there is one."""
        return False

    def rest(self, state: State) -> Tensor | None:
        """What this rank holds of the mean of all ranks beside its parameters, `[numel]`, or None."""
        return None

    def serve(self, cx: Context, bucket: Bucket, compressor: Compressor, outer: Outer) -> Served | None:
        """The service that every rank runs for a bucket, or None."""
        return None

    def exported(self, outer: Outer) -> Slots:
        """What its service exports, and what becomes of it; with the slots of an outer that it applies."""
        if not self.facts.applies_outer:
            return self.facts.service
        return {**self.facts.service, **{OUTER + slot: "part" for slot in outer.facts.slots}}

    def meeting(self, cx: Context, bucket: Bucket, compressor: Compressor) -> Request | None:
        """A request after which nobody waits for this rank's pushes until all ranks have made it, or None.

        It is answered when all have, or at once; at once where results may come late.
        """
        return None

    @abstractmethod
    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        """Exchange `tensor` (`[numel]`, which it may overwrite); returns the combined tensor."""

    def coded_bytes(self, compressor: Compressor, layout: Layout, element_bytes: int, world_size: int) -> int:
        """Bytes of a bucket's messages; where its parts are coded apart, of all parts, padded alike."""
        return compressor.layout_bytes(layout, element_bytes)

    @abstractmethod
    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        """The operations of a message, in the order of `run`; plans and `relaxcomm show` count with them.

        All ranks issue as many of each kind, also those that have nothing to send.

        Args:
            world_size: number of ranks.
            topology: the configured graph.
        """

    def exact_stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        """The same where means in float16 or bfloat16 are rounded once, see `Context.exact`."""
        return self.stages(world_size, topology)

    def awaited(self, world_size: int) -> Awaited:
        """Whom a rank waits for, where each goes on alone."""
        return Awaited(world_size if self.facts.same_result else 1)


def slots_in_run(
    exchange: Exchange, bucket: Bucket, compressor: Compressor, membership: Membership
) -> dict[str, Tensor]:
    """What `run` keeps for a bucket: the exchange's own slots, and the compressor's.

    Raises: CompositionError for a name that both have.
    """
    own, coding = exchange.init(bucket), exchange.coding_slots(bucket, compressor, membership)
    if both := sorted(own.keys() & coding.keys()):
        raise CompositionError(
            f"the slots {both} are made by init of {exchange!r}, and again among those of {compressor!r} by "
            "coding_slots; give those of init names of their own"
        )
    return {**own, **coding}
