"""Means that a few workers, whatever they send, cannot move far."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.errors import TopologyError
from relaxcomm.fields.frozen import Count, frozen
from relaxcomm.network.operations import AllGather
from relaxcomm.primitives.exchanges.all_gather import all_gather
from relaxcomm.primitives.exchanges.message_rounds import Combining, coded, received
from relaxcomm.roles import Compressor, Context, Exchange, ExchangeFacts, Exchanging, Stage, State
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.messages import SUMMABLE, Dense, Message
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.segments import chunk_size
from relaxcomm.topology import Topology

_CHUNK = 1 << 14  # entries of which all workers' fit into the cache


class RobustMean(Exchange):
    """Gathers all messages, and takes the mean of each entry without its largest and smallest values."""

    facts: ClassVar[ExchangeFacts] = replace(
        all_gather.facts,
        accepts=SUMMABLE,  # place by place, the workers' numbers are of the same thing
        several_rounds=False,
        returns="robust mean",
    )

    @abstractmethod
    def trimmed(self, world_size: int) -> int:
        """How many values are left out at either end."""

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        result, _ = yield from coded(cx, tensor, compressor, state, self._middle)
        return result

    def _middle(self, message: Message) -> Combining:
        assert isinstance(message, Dense), "no others are accepted"
        rows = yield from received(AllGather(message.pack()))
        values = [message.unpack(row).tensor for row in rows]
        return [(1.0, replace(message, tensor=mean_of_middle(values, self.trimmed(len(rows)))))]

    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        return [Stage(AllGather)]


@frozen
class trimmed_mean(RobustMean):
    """The mean of each entry without its `trim` largest and `trim` smallest values among the workers.

    With `x_(1) <= ... <= x_(N)` the workers' values of an entry:
    `(x_(trim+1) + ... + x_(N-trim)) / (N - 2 trim)`. Up to `trim` workers may send anything, NaN and infinity
    too: each entry stays between the smallest and the largest value of the others. NaN counts as the
    largest. Where more than `trim` workers send infinity of one sign, or NaN, it is in the result, and
    nothing of the exchange is kept, as with any other.

    A rank sends its message `N - 1` times, since nobody else is trusted with the mean. Entries are those of
    the messages, which must have them all, or the same ones, as with `random_k`. The model's buffers are
    averaged in the same way. It bounds what goes into an average and nothing else: the workers' votes, and
    the parameters that rank 0 gives to all at the beginning, are taken as they come.

    Args:
        trim: how many values are left out at either end; there must be more than `2 trim` workers.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import parameters, trimmed_mean
        >>> rule = Rule(payload=parameters(), exchange=trimmed_mean(trim=1))
        >>> trajectory(rule, [[1.0, 2.0, 4.0, float("nan")]])
        tensor([[3., 3., 3., 3.]])

    Reference: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML
        2018.

    Differs from the paper: what is left out is given as a number of workers and not as a share.
    """

    trim: Count

    facts: ClassVar[ExchangeFacts] = RobustMean.facts

    def trimmed(self, world_size: int) -> int:
        return self.trim

    def check_graph(self, topology: Topology, world_size: int) -> None:
        super().check_graph(topology, world_size)
        if world_size <= 2 * self.trim:
            raise TopologyError(
                f"{self!r} leaves out {self.trim} values at either end, so that of {world_size} worker(s) "
                f"nothing is left; it takes {2 * self.trim + 1} workers or more, or a smaller trim"
            )


@frozen
class coordinate_median(RobustMean):
    """The median of each entry among the workers; of an even number the mean of the two in the middle.

    Fewer than half of the workers may send anything, NaN and infinity too, as with `trimmed_mean`, of which
    it is the one that leaves out the most. The price is a median for a mean: it uses less of what the
    workers have learnt, the more so where their data differ.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import coordinate_median, deltas, every
        >>> rule = Rule(trigger=every(steps=1), payload=deltas(), exchange=coordinate_median())
        >>> trajectory(rule, [[1.0, 2.0, 4.0, 8.0, -1e6]])
        tensor([[2., 2., 2., 2., 2.]])

    Reference: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML
        2018.
    """

    facts: ClassVar[ExchangeFacts] = RobustMean.facts

    def trimmed(self, world_size: int) -> int:
        return (world_size - 1) // 2


def mean_of_middle(values: Sequence[Tensor], trim: int) -> Tensor:
    """The mean of each entry without its `trim` largest and smallest values, at least float32.

    Args:
        values: of each worker, `[numel]`; NaN counts as the largest.
        trim: less than half of their number.

    Example:
        >>> import torch
        >>> from relaxcomm.primitives.exchanges.robust_mean import mean_of_middle
        >>> mean_of_middle([torch.tensor([1.0, 5.0]), torch.tensor([2.0, -9.0]), torch.tensor([9.0, 4.0])], 1)
        tensor([2., 4.])
    """
    out = buffer_pool.empty_like(values[0], wide(values[0].dtype))
    size = chunk_size(out, _CHUNK)
    for start in range(0, out.numel(), size):
        rows = torch.stack([value[start : start + size] for value in values]).to(out.dtype)
        middle = _without_ends(list(rows.masked_fill_(rows.isnan(), torch.inf)), trim)
        torch.mean(torch.stack(middle), dim=0, out=out[start : start + size])
    return out


def _without_ends(rows: list[Tensor], trim: int) -> list[Tensor]:
    """The values between the `trim` largest and smallest of each entry: ten times as fast as sorting all."""
    for _ in range(trim):
        largest_to_end, smallest_to_front = range(len(rows) - 1), reversed(range(len(rows) - 2))
        for place in (*largest_to_end, *smallest_to_front):
            one, other = rows[place], rows[place + 1]
            rows[place], rows[place + 1] = torch.minimum(one, other), torch.maximum(one, other)
        rows = rows[1:-1]
    return rows
