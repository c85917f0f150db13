"""Exchanges inside and between groups of ranks, such as those of one machine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.operations import Neighbors, Operation, Received
from relaxcomm.primitives.exchanges.gossip import gossip
from relaxcomm.primitives.exchanges.message_rounds import Combining, coded
from relaxcomm.roles import Compressor, Context, Exchange, ExchangeFacts, Exchanging, Stage, State
from relaxcomm.roles.stage import Pairs
from relaxcomm.tensors.messages import Dense, Message
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.shards import shard_sizes
from relaxcomm.topology import Topology


@frozen
class group_all_reduce(Exchange):
    """The mean over the ranks of the own group alone.

    Each rank sums one shard for all and sends it back: `2 (n - 1) / n` of the message in a group of n.

    Example:
        >>> from relaxcomm import Algorithm, Rule, trajectory
        >>> from relaxcomm.primitives import every, group_all_reduce, hierarchical
        >>> from relaxcomm.primitives import hierarchical_all_reduce, parameters
        >>> inside = Rule(payload=parameters(), exchange=group_all_reduce())
        >>> seldom = every(steps=2)
        >>> between = Rule(trigger=seldom, payload=parameters(), exchange=hierarchical_all_reduce())
        >>> moves = [[1.0, 3.0, 5.0, 9.0]] * 2
        >>> trajectory(Algorithm((inside, between)), moves, topology=hierarchical(sizes=2))
        tensor([[2., 2., 7., 7.],
                [9., 9., 9., 9.]])
    """

    facts: ClassVar[ExchangeFacts] = replace(gossip.facts, topology="groups")

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        groups = _Groups(cx)
        result, _ = yield from coded(cx, tensor, compressor, state, partial(_averaged, groups.inside_mean))
        return result

    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        return [_in_groups(topology.groups(world_size), world_size)] * 2


@frozen
class hierarchical_all_reduce(Exchange):
    """The mean over all ranks: reduced inside each group, exchanged between them, spread inside again.

    The n ranks of a group each sum one shard; between G groups each entry is summed by one rank, which
    sends the mean back, so that a group sends `2 (G - 1) / G` of the message to others, through all of its
    ranks at once. Groups may differ in size: sums are divided by the number of all ranks. Of parameters in
    float16 or bfloat16 what a group sends to be summed is in float32, so that the mean is rounded once, and
    what all agree on stays.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import gradients, hierarchical, hierarchical_all_reduce
        >>> rule = Rule(payload=gradients(), exchange=hierarchical_all_reduce())
        >>> trajectory(rule, [[1.0, 2.0, 6.0]], topology=hierarchical(sizes=(2, 1)))
        tensor([[3., 3., 3.]])
    """

    facts: ClassVar[ExchangeFacts] = replace(group_all_reduce.facts, same_result=True)

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        groups = _Groups(cx)
        result, _ = yield from coded(cx, tensor, compressor, state, partial(_averaged, groups.mean))
        return result

    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        groups = topology.groups(world_size)
        inside, between = _in_groups(groups, world_size), _between_groups(groups, world_size)
        return [inside, between, between, inside]

    def exact_stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        first, summed, *others = self.stages(world_size, topology)
        return [first, replace(summed, share=2 * summed.share), *others]


def _in_groups(groups: Sequence[Sequence[int]], world_size: int) -> Stage:
    """In each group all send all others a part."""

    def pairs() -> Pairs:
        return {pair: 1 / len(group) for group in groups for pair in itertools.permutations(group, 2)}

    return Stage(Neighbors, share=sum(len(group) - 1 for group in groups) / world_size, pairs=pairs)


def _between_groups(groups: Sequence[Sequence[int]], world_size: int) -> Stage:
    """Ranks of different groups whose parts of the entries overlap send each other what does."""

    def pairs() -> Pairs:
        parts = [
            (rank, place / len(group), (place + 1) / len(group), index)
            for index, group in enumerate(groups)
            for place, rank in enumerate(group)
        ]
        return {
            (one, other): overlap
            for one, low, high, here in parts
            for other, start, stop, there in parts
            if here != there and (overlap := min(high, stop) - max(low, start)) > 1e-9
        }

    return Stage(Neighbors, share=(len(groups) - 1) / world_size, pairs=pairs)


def _averaged(mean: Callable[[Tensor], Exchanging], message: Message) -> Combining:
    assert isinstance(message, Dense), "no others are accepted"
    return [(1.0, Dense((yield from mean(message.tensor))))]


_Spans: TypeAlias = Mapping[int, range]
"""For each rank some entries of a bucket, maybe none."""


class _Groups:
    """The groups as one rank sees them."""

    def __init__(self, cx: Context) -> None:
        self.rank, self.world_size, self.exact = cx.membership.rank, cx.membership.world_size, cx.exact
        self.groups = cx.topology.groups(self.world_size)
        self.index = next(index for index, group in enumerate(self.groups) if self.rank in group)
        self.group = self.groups[self.index]  # which this rank is in

    def inside_mean(self, tensor: Tensor) -> Exchanging:
        """The mean over this rank's group."""
        total, size = (yield from self._reduce_inside(tensor)), len(self.group)
        return (yield from self._spread_inside((total / size).to(tensor.dtype), tensor.numel()))

    def mean(self, tensor: Tensor) -> Exchanging:
        """The mean over all ranks; each entry is summed by one rank, so that all get the same bits."""
        total = yield from self._reduce_inside(tensor)
        # As a part of the mean it cannot overflow; that of equal values is theirs if it is rounded once.
        share = (total / self.world_size).to(total.dtype if self.exact else tensor.dtype)
        mine = _cut(tensor.numel(), self.group)[self.rank]
        given, taken = {}, {}  # the entries that others sum for this rank, and that it sums for others
        for index, group in enumerate(self.groups):
            if index != self.index:
                for rank, span in _cut(tensor.numel(), group).items():
                    given[rank] = self._summed_by(index, mine, span)
                    taken[rank] = self._summed_by(self.index, mine, span)
        summed = share.to(total.dtype, copy=True)
        for rank, part in (yield from _swap(share, mine.start, given, taken)).items():
            summed[_inside(taken[rank], mine.start)] += part
        share = summed.to(tensor.dtype)
        for rank, part in (yield from _swap(share, mine.start, taken, given)).items():
            share[_inside(given[rank], mine.start)] = part
        return (yield from self._spread_inside(share, tensor.numel()))

    def _summed_by(self, index: int, *shards: range) -> range:
        """Of the entries that shards have in common, those that a group sums: groups take turns in each."""
        start, turns = max(shard.start for shard in shards), len(self.groups)
        return range(start + (index - start) % turns, min(shard.stop for shard in shards), turns)

    def _reduce_inside(self, tensor: Tensor) -> Exchanging:
        """The sum over the group of this rank's shard, in the order of the ranks."""
        spans = _cut(tensor.numel(), self.group)
        mine = spans.pop(self.rank)
        shards = yield from _swap(tensor, 0, spans, dict.fromkeys(spans, mine))
        shards[self.rank] = tensor[_inside(mine)]
        total = torch.zeros(len(mine), dtype=wide(tensor.dtype), device=tensor.device)
        for rank in sorted(shards):
            total += shards[rank]
        return total

    def _spread_inside(self, shard: Tensor, numel: int) -> Exchanging:
        """All shards of the group, side by side."""
        spans = _cut(numel, self.group)
        mine = spans.pop(self.rank)
        shards = yield from _swap(shard, mine.start, dict.fromkeys(spans, mine), spans)
        shards[self.rank] = shard
        return torch.cat([shards[rank] for rank in self.group if rank in shards])


def _swap(
    tensor: Tensor, start: int, sends: _Spans, receives: _Spans
) -> Generator[Operation, Received, dict[int, Tensor]]:
    """Send entries of a tensor that begins at entry `start`; what came, in the order of the ranks."""
    received = yield Neighbors(
        {rank: tensor[_inside(span, start)].contiguous() for rank, span in sends.items() if span},
        {rank: tensor.new_empty(len(span)) for rank, span in receives.items() if span},
    )
    assert not isinstance(received, Tensor)
    return dict(sorted(received.items()))


def _cut(numel: int, ranks: Sequence[int]) -> dict[int, range]:
    """A share of all entries for each rank."""
    sizes = shard_sizes(numel, len(ranks))
    stops = list(itertools.accumulate(sizes))
    return {rank: range(stop - size, stop) for rank, size, stop in zip(ranks, sizes, stops, strict=True)}


def _inside(span: range, start: int = 0) -> slice:
    return slice(span.start - start, span.stop - start, span.step)
