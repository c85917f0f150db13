"""What a primitive is: the roles in a rule, free of I/O, and what they see of the run.

Primitives are frozen and stateless. Their state lives in slots that the engine keeps per rule and
bucket, made by `init` and checkpointed by the engine. Exchanges and compressors are generators:
a compressor yields messages to the exchange, an exchange yields operations to the engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from relaxcomm.buckets import Bucket
from relaxcomm.data.clients import RoundPlan
from relaxcomm.frozen import Declared, Index, Share
from relaxcomm.messages import Message, Sparse
from relaxcomm.operations import Operation, Received
from relaxcomm.topology import Topology, complete
from relaxcomm.transport.base import Membership, Service

PROTOCOL_VERSION = 1

State: TypeAlias = MutableMapping[str, Tensor]
"""Slots of one primitive for one bucket. Assign a new tensor to change a slot, never write into the
old one: the engine keeps an assignment only if the whole window is finite on all ranks. A slot whose
name begins with `_` is a buffer of no meaning: it may be written into, and no checkpoint holds it."""

Parts: TypeAlias = Sequence[tuple[float, Message]]
"""Weighted messages; the combined result is the weighted sum of what they decode to. An all-reduce
gives one part of weight 1, an all-gather one part a worker."""

Coding: TypeAlias = Generator[Message, Parts, tuple[Tensor, Tensor | Sparse | None]]
"""Yields a message, is sent the parts that came back, returns `(result, own)`."""

Exchanging: TypeAlias = Generator[Operation, Received, Tensor]


def _nobody_voted(trigger: VotingTrigger) -> bool:
    raise AssertionError(f"{trigger!r} is asked outside a run")


def _unnoted(name: str, value: float) -> None:
    """Outside a run nobody keeps statistics."""


@dataclass(frozen=True)
class Context:
    """What a primitive may know of the run: never the engine itself.

    Args:
        step: the clock, the number of optimizer steps that are complete.
        start: the first step in which the rule is active.
        membership: rank and world size now.
        learning_rate: the optimizer's current rate for a bucket, a float or a flat `[numel]` tensor.
        gradient_scale: the GradScaler's scale, a scalar tensor, or None without a scaler.
        values: what controllers have written, such as `batch_size`.
        round: how often the rule has exchanged this bucket before.
        note: takes a named number for the statistics, such as the staleness that was seen.
        event: what the engine was told of just now, such as "round", or None in a step.
        topology: the configured graph of the ranks.
        decided: what the workers agreed on for a voting trigger in this step.
    """

    step: int
    start: int
    membership: Membership
    learning_rate: Callable[[Bucket], float | Tensor]
    gradient_scale: Tensor | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    round: int = 0
    event: str | None = None
    note: Callable[[str, float], None] = _unnoted
    topology: Topology = field(default_factory=complete)
    decided: Callable[[VotingTrigger], bool] = _nobody_voted


class Primitive(Declared):
    """Base of all roles in a rule. Subclasses are made with `@frozen`: frozen dataclasses."""

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        """The slots that this primitive keeps for a bucket, at their first values."""
        return {}

    def check_optimizer(self, groups: list[dict[str, object]]) -> None:
        """Refuse parameter groups of an optimizer that this primitive cannot work with.

        Raises: CompositionError, saying which it can.
        """


Agreement: TypeAlias = Literal["any", "all", "majority"] | Share
"""How many workers must vote yes: a rule by name, or the least fraction of them."""


def agreed(agreement: Agreement, yes: float, voters: float) -> bool:
    """Whether `yes` of `voters` are enough."""
    if agreement == "all":
        return 0 < yes == voters
    if agreement == "majority":
        return 2 * yes > voters
    return yes > 0 if agreement == "any" else 0 < yes >= float(agreement) * voters


class Observation:
    """What a trigger may look at when it votes: this rank's gradients at the end of backward.

    Args:
        gradients: as they are in `.grad`, scaled if a GradScaler is used.
        scale: the GradScaler's scale, or 1.
    """

    def __init__(self, gradients: Sequence[Tensor], scale: float = 1.0) -> None:
        self.gradients, self.scale = gradients, scale

    @cached_property
    def squared_norm(self) -> float:
        """`||g||^2` over all parameters, unscaled; on a GPU the host waits for it."""
        if not self.gradients:
            return 0.0
        norms = torch.stack([n.double() for n in torch._foreach_norm(list(self.gradients))])
        return float(norms.square().sum()) / self.scale**2


class Trigger(Primitive):
    """When a rule exchanges."""

    role: ClassVar[str] = "trigger"
    known: ClassVar[Literal["start", "backward", "event"]] = "start"

    @property
    @abstractmethod
    def period_steps(self) -> int:
        """The least number of steps from one firing to the next."""

    def plan(self) -> RoundPlan | None:
        """What clients do between two exchanges, for triggers that wait for a round's end."""
        return None

    @abstractmethod
    def fires(self, cx: Context, bucket: Bucket) -> bool:
        """Whether the rule exchanges `bucket` in this step; the same on all ranks by construction."""


class VotingTrigger(Trigger):
    """A trigger that looks at the gradients; in each step the workers vote and agree.

    The state that it keeps is of the whole model, made by `init_vote`.
    """

    known: ClassVar[Literal["start", "backward", "event"]] = "backward"
    agree: Agreement

    @property
    def period_steps(self) -> int:
        return 1

    def fires(self, cx: Context, bucket: Bucket) -> bool:
        return cx.decided(self)

    def init_vote(self) -> Mapping[str, Tensor]:
        """The slots that this trigger keeps, at their first values; CPU tensors."""
        return {}

    @abstractmethod
    def vote(self, cx: Context, state: State, observation: Observation) -> bool:
        """What this worker wants in this step."""


class Payload(Primitive):
    """What a rule exchanges.

    `site` is where it is read: "backward", as gradients become ready, or "step", after the optimizer.
    `has_weight` payloads carry a weight behind their entries, which only elementwise coders leave alone;
    `needs_event` names the event that their trigger must wait for.
    """

    role: ClassVar[str] = "payload"
    site: ClassVar[Literal["backward", "step"]]
    has_base: ClassVar[bool] = False
    averages_buffers: ClassVar[bool] = False
    has_weight: ClassVar[bool] = False
    needs_event: ClassVar[str | None] = None

    @property
    def keeps_local(self) -> bool:
        """Whether a part of the local parameters stays in what is written."""
        return False

    @abstractmethod
    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        """Fill `out` (`[numel]`) with what is to be exchanged and return it."""

    def base(self, cx: Context, bucket: Bucket, state: State) -> Tensor | None:
        """The point from which an outer optimizer moves, or None."""
        return None

    def settle(self, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
        """Make a combined result, which may have entries more than the bucket, into the payload's."""
        return result

    def before_step(self, cx: Context, bucket: Bucket, state: State) -> None:
        """Change `.grad` just before the optimizer's step."""

    def event(
        self, cx: Context, bucket: Bucket, state: State, event: str, facts: Mapping[str, float]
    ) -> None:
        """Take note of something that the engine was told of."""

    @abstractmethod
    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        """Apply `value`; `snapshot` is what the parameters were at `read` if the result comes late."""


class Compressor(Primitive):
    """How a tensor is encoded.

    Facts, declared here and held against observation by the contract tests:
        kinds: message kinds that it may yield.
        rounds: messages a tensor.
        linear: `code(a + b) = code(a) + code(b)`, to rounding, and no state is kept.
        elementwise: entries are coded one by one, so that an entry more changes no other.
        unbiased: the expectation of `C(x)` is `x`.
        keeps_rest: what a message leaves out is kept and sent later.
        keeps_finite: a message of finite entries is finite, so that ranks can agree on whether all is
            well while it is on its way.
        follows_clock: how a message is to be read depends on the step in which it was made.
    """

    role: ClassVar[str] = "compressor"
    kinds: ClassVar[frozenset[str]]
    rounds: ClassVar[int] = 1
    linear: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True
    keeps_rest: ClassVar[bool] = False
    keeps_finite: ClassVar[bool] = False
    follows_clock: ClassVar[bool] = False

    @property
    def coding_scope(self) -> str:
        """What it looks at when it codes an entry: its "bucket", or the whole "model".

        The model then lies in one bucket for each dtype, so that the bucket size does not change what
        the compressor means.
        """
        return "bucket"

    def contraction(self, numel: int) -> float | None:
        """A bound on `E ||C(x) - x||^2 / ||x||^2` for `numel` entries, or None if there is none."""
        return None

    @abstractmethod
    def code(self, cx: Context, tensor: Tensor, state: State, *, keep_own: bool) -> Coding:
        """Encode `tensor` (`[numel]`), yield messages, decode what comes back.

        Returns the decoded result and, if `keep_own`, what this worker's own messages decode to, as a
        tensor or, where that is less work for whoever subtracts it, as a sparse message.
        """

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        """How many values, which may be coded further, a message of `numel` entries holds; bytes of each."""
        return numel, element_bytes

    @abstractmethod
    def message_bytes(self, numel: int, element_bytes: int) -> int:
        """Bytes of all messages for a tensor of `numel` entries of `element_bytes` each."""


@dataclass(frozen=True)
class Served:
    """A service for one bucket, with the tensors that a request to one rank and its reply look like."""

    service: Service
    request: Tensor
    reply: Tensor


class Exchange(Primitive):
    """Over what and with whom messages are combined.

    Facts:
        accepts: message kinds that it can combine.
        collective: all ranks take part in each round.
        same_result: every rank ends with the same tensor.
        operations: operations a message.
        uses_topology: how it uses the configured topology: "complete" exchanges with all ranks, so that
            no other graph makes sense; "graph" needs one that mixes; "groups" needs one with groups.
        returns_base: the result is the payload's new base itself, not a combination of messages.
    """

    role: ClassVar[str] = "exchange"
    accepts: ClassVar[frozenset[str]]
    collective: ClassVar[bool] = True
    same_result: ClassVar[bool] = True
    operations: ClassVar[int] = 1
    returns_base: ClassVar[bool] = False
    uses_topology: ClassVar[Literal["complete", "graph", "groups"]] = "complete"

    def own_topology(self) -> Topology | None:
        """The topology that it was given itself, which wins over the configured one."""
        return None

    def pieces(self, numel: int, world_size: int) -> Sequence[int] | None:
        """Sizes of the parts of a bucket that are coded each on its own; None for the whole."""
        return None

    def serve(self, cx: Context, bucket: Bucket, compressor: Compressor) -> Served | None:
        """The service that every rank runs for a bucket, or None."""
        return None

    @abstractmethod
    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        """Exchange `tensor` (`[numel]`, which it may overwrite); returns the combined tensor."""

    @abstractmethod
    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        """Bytes that a rank sends, on average over the ranks, for messages of `message_bytes`."""


class Outer(Primitive):
    """What then: how a combined result moves the model.

    `target` is what it moves; an outer without one leaves the model alone and feeds controllers.
    `needs_base` outers move from the payload's base along the result; `needs_optimizer` ones read
    the local optimizer's learning rate.
    """

    role: ClassVar[str] = "outer"
    target: ClassVar[Literal["payload"] | None] = "payload"
    needs_base: ClassVar[bool] = False
    needs_optimizer: ClassVar[bool] = False

    @abstractmethod
    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        """The new value of the payload, `[numel]`."""


@dataclass(frozen=True)
class MicroGradients:
    """The gradients g_1 … g_J that a step accumulates, one for each backward.

    Args:
        count: J.
        squares: `sum_j ||g_j||^2`.
        squared_norm: `||sum_j g_j||^2`.
    """

    count: int
    squares: float
    squared_norm: float


@dataclass(frozen=True)
class Seen:
    """What a controller sees of one bucket after an exchange.

    Args:
        unit: index of the bucket.
        local: what this worker put in, `[numel]`, for rules of gradients; None otherwise.
        result: the combined result, `[numel]`.
        micro: the step's micro-gradients over all parameters, for controllers that need them.
    """

    unit: int
    local: Tensor | None
    result: Tensor
    micro: MicroGradients | None = None


class Controller(Primitive):
    """Watches one rule and writes named values, the same on all ranks.

    Facts:
        needs: values that must exist before the first step; `engine.loader` makes `batch_size`.
        needs_local: it looks at what the worker put in, so it must watch a rule of gradients.
        needs_micro_gradients: it looks at the gradients that a step accumulates.
    """

    role: ClassVar[str] = "controller"
    needs: ClassVar[frozenset[str]] = frozenset()
    needs_local: ClassVar[bool] = False
    needs_micro_gradients: ClassVar[bool] = False
    rule: Index

    @abstractmethod
    def observe(self, cx: Context, seen: Seen) -> Tensor:
        """A few numbers of one bucket, `[k]`; they are added up over buckets and workers."""

    @abstractmethod
    def decide(self, cx: Context, total: Tensor) -> Mapping[str, float]:
        """New values from the numbers' sum; a value that is left out stays."""
