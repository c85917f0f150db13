"""Gossip with compressed messages: neighbours send how they have changed, and all keep what was sent."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Share, frozen
from relaxcomm.network.transport import Membership
from relaxcomm.primitives.compressors.decode import as_dense
from relaxcomm.primitives.compressors.memory import inner_slots, inner_state
from relaxcomm.primitives.exchanges.gossip import OverGraph, gossip, mixed
from relaxcomm.primitives.exchanges.message_rounds import coded
from relaxcomm.roles import Compressor, Context, Exchange, ExchangeFacts, Exchanging, State
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.messages import ALL_KINDS, Sparse
from relaxcomm.tensors.precision import HALVES
from relaxcomm.tensors.segments import chunk_size
from relaxcomm.topology import Topology

_COPY, _DISAGREEMENT = "public_copy", "disagreement"
_CHUNK = 1 << 14  # entries that fit into the innermost caches in float64


class PublicCopyGossip(OverGraph):
    """Gossip of differences to public copies `r_j`, which rank j and its neighbours change alike.

    `q_i = C(difference)` goes to all neighbours, and then `r_j <- r_j + q_j`. Of all these a rank keeps two
    tensors, whatever their number: the public copy of its parameters, in float64 so that roundings do not
    add up, and the disagreement `d_i = sum_j W_ij (r_j - r_i)` of the neighbours' with it. Public copies
    begin at the parameters of rank 0, which all ranks start from.
    """

    facts: ClassVar[ExchangeFacts] = replace(
        gossip.facts,
        accepts=ALL_KINDS,
        needs_fixed_graph=True,
        follows_parameters=True,
        slots={_COPY: "fresh", _DISAGREEMENT: "fresh"},
        coding="inner",
    )

    @property
    def without_memory(self) -> Exchange:
        return gossip(topology=self.topology)

    def coding_slots(
        self, bucket: Bucket, compressor: Compressor, membership: Membership
    ) -> Mapping[str, Tensor]:
        public, disagreement = bucket.copy().to(_wider(bucket.dtype)), bucket.zeros()
        return {_COPY: public, _DISAGREEMENT: disagreement, **inner_slots(compressor, bucket)}

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        difference = buffer_pool.empty_like(tensor)
        for out, x, public, disagreement in _chunks(difference, tensor, state[_COPY], state[_DISAGREEMENT]):
            out.copy_(self._difference(x, public, disagreement))
        mixing, inner = partial(mixed, cx, self.graph(cx.topology)), inner_state(state, difference)
        change, sent = yield from coded(cx, difference, compressor, inner, mixing, keep_sent=True)
        assert sent is not None
        self._follow(state, change, sent, spare=difference)
        for x, public, disagreement in _chunks(tensor, state[_COPY], state[_DISAGREEMENT]):
            self._move(x, public, disagreement)
        return tensor

    def _follow(self, state: State, change: Tensor, sent: Tensor | Sparse, spare: Tensor) -> None:
        """`r_i <- r_i + q_i`, `d_i <- d_i + sum_j W_ij q_j - q_i`, which is kept in `spare` if it can be."""
        local, before = as_dense(sent, change), state[_DISAGREEMENT]
        disagreements = buffer_pool.out_or_empty(before, before.dtype, spare, local)
        copies = buffer_pool.empty_like(state[_COPY])
        places = copies, state[_COPY], disagreements, before, change, local
        for new_public, public, new_disagreement, disagreement, all_sent, local_sent in _chunks(*places):
            new_public.copy_(local_sent).add_(public)
            torch.add(disagreement, all_sent, out=new_disagreement).sub_(local_sent)
        state[_COPY], state[_DISAGREEMENT] = copies, disagreements

    @abstractmethod
    def _difference(self, x: Tensor, public: Tensor, disagreement: Tensor) -> Tensor:
        """What is sent, in the type of `own`."""

    @abstractmethod
    def _move(self, x: Tensor, public: Tensor, disagreement: Tensor) -> None:
        """Make x the new parameters, from public copies that have changed."""


@frozen
class choco_gossip(PublicCopyGossip):
    """Send how far parameters are from their public copies, and move towards the neighbours' public copies.

    `q_i = C(x_i - r_i)`, `r_j <- r_j + q_j`, `x_i <- x_i + gamma sum_j W_ij (r_j - r_i)`. The mean of all x
    stays as it is, whatever C leaves out, and what it leaves out is in the next difference.

    Args:
        gamma: the size of the move, in (0, 1]; the more C leaves out, the smaller.
        topology: the graph, which must stay the same; None for the configured one.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import choco_gossip, parameters, sign
        >>> rule = Rule(payload=parameters(), compressor=sign(), exchange=choco_gossip(gamma=0.4))
        >>> trajectory(rule, [[4.0, 0.0, 2.0]] + [[0.0] * 3] * 3)
        tensor([[3.2000, 0.8000, 2.0000],
                [2.7200, 1.2800, 2.0000],
                [2.4320, 1.5680, 2.0000],
                [2.2592, 1.7408, 2.0000]])

    Reference: Koloskova, Stich and Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms
        with Compressed Communication", ICML 2019.

    Differs from the paper: public copies begin at the common start and not at 0.
    """

    gamma: Share
    topology: Topology | None = None

    facts: ClassVar[ExchangeFacts] = replace(PublicCopyGossip.facts, memory="lossless")

    def _difference(self, x: Tensor, public: Tensor, disagreement: Tensor) -> Tensor:
        return x.to(public.dtype, copy=True).sub_(public)

    def _move(self, x: Tensor, public: Tensor, disagreement: Tensor) -> None:
        x.add_(disagreement, alpha=self.gamma)


@frozen
class dcd_gossip(PublicCopyGossip):
    """Send how parameters are to change, and change them by what was sent, so that public copies are exact.

    With y_i what the optimizer has made of x_i: `q_i = C(sum_j W_ij x_j + (y_i - x_i) - x_i)` and
    `x_j <- x_j + q_j`. Without loss this is `x_i <- sum_j W_ij x_j + (y_i - x_i)`, gossip before the
    update. What C leaves out is gone, so C should be unbiased and lose little: a few bits an entry.

    Args:
        topology: the graph, which must stay the same; None for the configured one.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import dcd_gossip, parameters
        >>> rule = Rule(payload=parameters(), exchange=dcd_gossip())
        >>> trajectory(rule, [[4.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
        tensor([[4., 0., 2.],
                [2., 2., 2.]])

    Reference: Tang et al., "Communication Compression for Decentralized Training", NeurIPS 2018.
    """

    topology: Topology | None = None

    facts: ClassVar[ExchangeFacts] = PublicCopyGossip.facts

    def _difference(self, x: Tensor, public: Tensor, disagreement: Tensor) -> Tensor:
        update = x - public.to(x.dtype)  # from where the last exchange put x, as its type holds it
        return update.to(public.dtype, copy=True).add_(disagreement)

    def _move(self, x: Tensor, public: Tensor, disagreement: Tensor) -> None:
        x.copy_(public)


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts that fit into the cache, since arithmetic over two types goes through memory; all on a GPU."""
    size = chunk_size(tensors[0], _CHUNK)
    for start in range(0, tensors[0].numel(), size):
        yield tuple(tensor[start : start + size] for tensor in tensors)


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32 if dtype in HALVES else torch.float64)
