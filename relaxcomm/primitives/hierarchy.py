"""Exchanges inside and between groups of ranks, such as those of one machine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from relaxcomm.frozen import frozen
from relaxcomm.messages import DENSE, Dense
from relaxcomm.operations import Neighbors, Operation, Received
from relaxcomm.pieces import piece_sizes
from relaxcomm.protocol import Coding, Compressor, Context, Exchange, Exchanging, State
from relaxcomm.topology import Topology


@frozen
class group_all_reduce(Exchange):
    """The mean over the ranks of the own group alone.

    Each rank sums one piece for all and sends it back: `2 (n - 1) / n` of the message in a group of n.

    Example:
        >>> group_all_reduce()
        group_all_reduce()
    """

    accepts: ClassVar[frozenset[str]] = frozenset({DENSE})
    same_result: ClassVar[bool] = False
    uses_topology: ClassVar[Literal["complete", "graph", "groups"]] = "groups"
    operations: ClassVar[int] = 2

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        groups = _Groups.of(cx)
        return (yield from _coded(compressor.code(cx, tensor, state, keep_own=False), groups.inside_mean))

    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        return _inside_bytes(message_bytes, topology.groups(world_size), world_size)


@frozen
class hierarchical_all_reduce(Exchange):
    """The mean over all ranks: reduced inside each group, exchanged between them, spread inside again.

    The n ranks of a group each sum one piece; between groups each sends its piece's sum to those that
    hold the same entries, so that a group sends its message once to each other group, through all
    of its ranks at once. Groups may differ in size: the sums are divided by the number of all ranks.

    Example:
        >>> hierarchical_all_reduce()
        hierarchical_all_reduce()
    """

    accepts: ClassVar[frozenset[str]] = frozenset({DENSE})
    uses_topology: ClassVar[Literal["complete", "graph", "groups"]] = "groups"
    operations: ClassVar[int] = 3

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        groups = _Groups.of(cx)
        return (yield from _coded(compressor.code(cx, tensor, state, keep_own=False), groups.mean))

    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        groups = topology.groups(world_size)
        between = len(groups) * (len(groups) - 1) * message_bytes / world_size
        return _inside_bytes(message_bytes, groups, world_size) + between


def _inside_bytes(message_bytes: int, groups: Sequence[Sequence[int]], world_size: int) -> float:
    return sum(2 * (len(group) - 1) for group in groups) * message_bytes / world_size


_Averaging: TypeAlias = Generator[Operation, Received, Tensor]


def _coded(coding: Coding, mean: Callable[[Tensor], _Averaging]) -> Exchanging:
    try:
        message = next(coding)
        while True:
            assert isinstance(message, Dense)
            result = yield from mean(message.tensor)
            message = coding.send(((1.0, Dense(result)),))
    except StopIteration as stop:
        decoded: Tensor = stop.value[0]
        return decoded


@dataclass(frozen=True)
class _Groups:
    """The groups as one rank sees them."""

    rank: int
    world_size: int
    groups: Sequence[Sequence[int]]

    @classmethod
    def of(cls, cx: Context) -> _Groups:
        size = cx.membership.world_size
        return cls(cx.membership.rank, size, cx.topology.groups(size))

    @property
    def own(self) -> Sequence[int]:
        return next(group for group in self.groups if self.rank in group)

    def inside_mean(self, tensor: Tensor) -> _Averaging:
        """The mean over the own group."""
        total = yield from self._reduce_inside(tensor)
        return (yield from self._spread_inside((total / len(self.own)).to(tensor.dtype), tensor))

    def mean(self, tensor: Tensor) -> _Averaging:
        """The mean over all ranks."""
        total = (yield from self._reduce_inside(tensor)).to(tensor.dtype)
        mine = self._bounds(tensor, self.own)[self.rank]
        shared = {
            other: (max(mine[0], bounds[0]), min(mine[1], bounds[1]))
            for group in self.groups
            if group is not self.own
            for other, bounds in self._bounds(tensor, group).items()
        }
        shared = {other: (start, stop) for other, (start, stop) in shared.items() if start < stop}
        received = yield Neighbors(
            {other: total[start - mine[0] : stop - mine[0]] for other, (start, stop) in shared.items()},
            {other: tensor.new_empty(stop - start) for other, (start, stop) in shared.items()},
        )
        assert not isinstance(received, Tensor)
        wide = torch.zeros(mine[1] - mine[0], dtype=_wide(tensor.dtype), device=tensor.device)
        # Summed in the order of the groups everywhere, so that all ranks get the same bits.
        for group in self.groups:
            if group is self.own:
                wide += total
            for other in sorted(set(group) & shared.keys()):
                start, stop = shared[other]
                wide[start - mine[0] : stop - mine[0]] += received[other]
        return (yield from self._spread_inside((wide / self.world_size).to(tensor.dtype), tensor))

    def _reduce_inside(self, tensor: Tensor) -> _Averaging:
        """The sum over the group of this rank's piece, in the order of the ranks."""
        bounds = self._bounds(tensor, self.own)
        start, stop = bounds[self.rank]
        others = [rank for rank in self.own if rank != self.rank]
        received = yield Neighbors(
            {other: tensor[slice(*bounds[other])].contiguous() for other in others},
            {other: tensor.new_empty(stop - start) for other in others},
        )
        assert not isinstance(received, Tensor)
        pieces: Mapping[int, Tensor] = {**received, self.rank: tensor[start:stop]}
        total = torch.zeros(stop - start, dtype=_wide(tensor.dtype), device=tensor.device)
        for rank in self.own:
            total += pieces[rank]
        return total

    def _spread_inside(self, piece: Tensor, like: Tensor) -> _Averaging:
        bounds = self._bounds(like, self.own)
        others = [rank for rank in self.own if rank != self.rank]
        received = yield Neighbors(
            dict.fromkeys(others, piece),
            {other: like.new_empty(bounds[other][1] - bounds[other][0]) for other in others},
        )
        assert not isinstance(received, Tensor)
        pieces: Mapping[int, Tensor] = {**received, self.rank: piece}
        return torch.cat([pieces[rank] for rank in self.own])

    def _bounds(self, tensor: Tensor, group: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Which entries each rank of a group sums."""
        bounds, start = {}, 0
        for rank, size in zip(group, piece_sizes(tensor.numel(), len(group)), strict=True):
            bounds[rank] = (start, start + size)
            start += size
        return bounds


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
