"""What every role sees of the run, and the slots that it keeps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Declared
from relaxcomm.fields.looked_at import Looks, one_of
from relaxcomm.network.transport import Membership
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.differences import Difference
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.topology import Topology, complete

State: TypeAlias = MutableMapping[str, Tensor]
"""Slots of one primitive for one bucket. Assign a new tensor to change a slot, never write into the
old one: the engine keeps an assignment only if the whole window is finite on all ranks. The new tensor has
the shape and dtype that `init` made, so that what is saved can be loaded. It may be what the primitive was
given, such as a result: of memory that is only lent a slot keeps a copy. A slot whose name begins with `_`
is a buffer of no meaning: it may be written into, and no checkpoint holds it. One that is called `residual`
holds what is still to be sent; its norm is among the metrics."""

_NOTHING = torch.empty(0)


def is_buffer(slot: str) -> bool:
    """Whether a slot has no meaning, which its name says; slots of parts and inner ones are called `a.b`."""
    return slot.rpartition(".")[2].startswith("_")


def _no_optimizer(bucket: Bucket, slots: Sequence[str]) -> list[Tensor | None]:
    """Outside a run no optimizer keeps anything."""
    return [None] * len(bucket.items)


def _unrecorded(name: str, value: float) -> None:
    """Outside a run nobody keeps statistics."""


@dataclass(frozen=True)
class Context:
    """What a primitive may know of the run: never the engine itself.

    Args:
        step: the clock, the number of optimizer steps that are complete.
        start: the first step in which the rule is active.
        membership: rank and world size now.
        learning_rate: the optimizer's current rate for a bucket, a float or a flat `[numel]` tensor.
        gradient_scale: by which the GradScaler has multiplied the gradients as they are now: a scalar
            tensor, `[numel]` where it is not the same for all of a bucket, or None for not at all.
        values: what controllers have written, such as `batch_size`, and first values until then.
        round: how often the rule has exchanged this bucket before; 0 where no bucket's exchange is asked
            about, as by a trigger.
        record: takes a named number for the statistics, such as the staleness that was seen: the largest so
            far is in `engine.statistics`, the latest among the metrics and in the run log.
        event: what the engine was told of just now, such as "round", or None in a step.
        topology: the configured graph of the ranks.
        decided: what the workers have voted for, if the rule's trigger votes and they have.
        layout: which tensors lie in what is exchanged, or None if that is not known.
        bucket_part: the bucket, and where its part begins: tells apart what is exchanged in one step.
        extra: for an outer's `measure`, what has come of the entries that a payload sends behind those of the
            bucket, `[extra_entries]`; none for all others.
        measured: what an outer's `measure` has found, or in `read` a payload's, `[k]` float64, added over all
            buckets of its rule.
        divided: whether what is exchanged is divided by the number of workers already.
        exact: the mean of equal values must be that value, as of parameters, so that float16 and bfloat16 are
            summed as float32; gradients are averaged as DistributedDataParallel does.
        samples: that this rank has trained on since the rule exchanged this bucket last; a step counts as
            one where no loader of the engine's says how many it had. For a trigger it is 1, as `round` is 0.
        out: memory, `[numel]`, that is free when a message is made, so that what is decoded may be written
            there, or None; it may be that of the tensor that is encoded. For an outer that of the result, if
            the value may take its place.
        terms: two tensors whose sum the encoded one is to become, by a compressor that says `makes_sum`; or
            None, and then it is made. The first may be a difference that is not made either.
        difference: what is encoded, not made yet, for a compressor that says `makes_difference`; or None.
        shard_size: entries of each rank's part of what is encoded, where all are coded at once, each on its
            own, by a compressor that can; or None.
        optimizer_state: what the optimizers keep of each tensor of a bucket under the first of some names
            that is there: the tensor itself, which may be written into, if sharded this rank's; None where
            it is not trained yet.

    Example:
        >>> from relaxcomm.plugin import Context, Membership
        >>> rank = Membership(rank=1, world_size=4)
        >>> cx = Context(step=7, start=4, membership=rank, learning_rate=lambda bucket: 0.1)
        >>> cx.step - cx.start, cx.membership.rank, cx.part(start=2, numel=3).bucket_part
        (3, 1, (2,))
    """

    step: int
    start: int
    membership: Membership
    learning_rate: Callable[[Bucket], float | Tensor]
    gradient_scale: Tensor | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    round: int = 0
    event: str | None = None
    record: Callable[[str, float], None] = _unrecorded
    topology: Topology = field(default_factory=complete)
    decided: bool | None = None
    layout: Layout | None = None
    bucket_part: tuple[int, ...] = ()
    extra: Tensor = _NOTHING
    measured: Tensor | None = None
    divided: bool = False
    exact: bool = False
    samples: int = 1
    out: Tensor | None = None
    terms: tuple[Tensor | Difference, Tensor] | None = None
    difference: Difference | None = None
    shard_size: int | None = None
    optimizer_state: Callable[[Bucket, Sequence[str]], list[Tensor | None]] = _no_optimizer

    def at(self, **changed: Any) -> Context:
        """This context but for some fields; asked in every step, so without the cost of `replace`."""
        made = object.__new__(Context)
        vars(made).update(vars(self), **changed)
        return made

    def layout_of(self, numel: int) -> Layout:
        """Which tensors lie in a flat tensor of `numel` entries."""
        layout = self.layout or one_tensor(numel)
        assert layout.numel == numel, f"{numel} entries are not those of {layout}"
        return layout

    def part(self, start: int, numel: int) -> Context:
        """What is known of `numel` entries from `start`."""
        layout = None if self.layout is None else self.layout.part(start, numel)
        difference = None if self.difference is None else self.difference.part(start, numel)
        place = (*self.bucket_part, start)
        return self.at(layout=layout, bucket_part=place, out=None, difference=difference)

    def generator(self, seed: int, device: torch.device, *apart: int) -> torch.Generator:
        """Random numbers from the clock and the bucket, other ones on each rank, so that no state is kept.

        Args:
            seed: of the primitive that draws.
            device: of the numbers.
            apart: what else is to have numbers of its own.

        Example:
            >>> import torch
            >>> from relaxcomm.plugin import Context, Membership
            >>> def drawn(step, rank):
            ...     cx = Context(step, 0, Membership(rank, 2), lambda bucket: 0.1)
            ...     return torch.rand(1, generator=cx.generator(7, torch.device("cpu"))).item()
            >>> drawn(step=3, rank=0) == drawn(step=3, rank=0), drawn(step=3, rank=0) == drawn(step=3, rank=1)
            (True, False)
        """
        return torch.Generator(device).manual_seed(self.number(seed, *apart) % 2**63)

    def number(self, seed: int, *apart: int) -> int:
        """The number that `generator` begins with, for random words that a kernel makes itself.

        Example:
            >>> from relaxcomm.plugin import Context, Membership
            >>> here = Context(3, 0, Membership(0, 2), lambda bucket: 0.1)
            >>> here.number(7) == here.number(7), here.number(7) == here.at(step=4).number(7)
            (True, False)
        """
        return hash((seed, self.step, self.round, self.membership.rank, self.bucket_part, *apart))


class Primitive(Declared):
    """Base of all roles in a rule. Subclasses are made with `@frozen`: frozen dataclasses."""

    looks: ClassVar[Looks] = {
        "init": one_of(Mapping, "return the tensor of each slot by its name, {} to keep nothing")
    }

    @property
    @abstractmethod
    def facts(self) -> Any:
        """What it declares: one frozen value, each field stated, all held by checks."""

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        """The slots that this primitive keeps for a bucket, at their first values."""
        return {}

    def check_optimizer(self, groups: list[dict[str, object]]) -> None:
        """Refuse parameter groups of an optimizer that this primitive cannot work with.

        Args:
            groups: each with its optimizer's class under "optimizer".

        Raises: CompositionError, saying which it can.
        """
