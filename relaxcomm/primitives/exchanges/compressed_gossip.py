"""Gossip with compressed messages: neighbours send how they have changed, and all keep what was sent."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Share, frozen
from relaxcomm.network.transport import Membership
from relaxcomm.primitives.compressors.decode import as_dense
from relaxcomm.primitives.exchanges.gossip import OverGraph, gossip, mix
from relaxcomm.roles import Compressor, Context, Exchange, ExchangeFacts, Exchanging, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.messages import ALL_KINDS, Sparse
from relaxcomm.tensors.shards import PieceState
from relaxcomm.topology import Topology

_OWN, _APART = "own", "apart"
_SPARE_OWN, _SPARE_APART, _MESSAGE = "_spare_own", "_spare_apart", "_message"
_INNER = 0
_CHUNK = 1 << 14  # entries that fit into the innermost caches in float64


class ReplicaGossip(OverGraph):
    """Gossip of differences to replicas `r_j`, which rank j and its neighbours change alike.

    `q_i = C(difference)` goes to all neighbours, and then `r_j <- r_j + q_j`. Of all these a rank keeps two
    tensors, whatever their number: its own replica, in float64 so that roundings do not add up, and how
    far the neighbours' are from it, `sum_j W_ij (r_j - r_i)`. Replicas begin at the parameters of rank 0,
    which all ranks start from.
    """

    @property
    def without_memory(self) -> Exchange:
        return gossip(topology=self.topology)

    def coding_slots(
        self, bucket: Bucket, compressor: Compressor, membership: Membership
    ) -> Mapping[str, Tensor]:
        own, apart = bucket.copy().to(_wider(bucket.dtype)), bucket.zeros()
        slots = {_OWN: own, _APART: apart}
        slots |= {_SPARE_OWN: torch.empty_like(own), _SPARE_APART: torch.empty_like(apart)}
        slots |= {_MESSAGE: bucket.empty()}
        PieceState(slots, _INNER).update(compressor.init(bucket))
        return slots

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        difference = state[_MESSAGE]
        for out, x, own, apart in _chunks(difference, tensor, state[_OWN], state[_APART]):
            out.copy_(self._difference(x, own, apart))
        coding = compressor.code(cx, difference, PieceState(state, _INNER), keep_sent=True)
        change, sent = yield from mix(cx, self.graph(cx.topology), coding)
        assert sent is not None
        self._follow(state, change, sent)
        for x, own, apart in _chunks(tensor, state[_OWN], state[_APART]):
            self._move(x, own, apart)
        return tensor

    def _follow(self, state: State, change: Tensor, sent: Tensor | Sparse) -> None:
        """`r_i <- r_i + q_i`, `apart <- apart + sum_j W_ij q_j - q_i`, in buffers that change places."""
        sent = as_dense(sent, change)
        places = state[_SPARE_OWN], state[_OWN], state[_SPARE_APART], state[_APART], change, sent
        for new_own, own, new_apart, apart, all_sent, own_sent in _chunks(*places):
            new_own.copy_(own_sent).add_(own)
            torch.add(apart, all_sent, out=new_apart).sub_(own_sent)
        state[_SPARE_OWN], state[_OWN] = state[_OWN], state[_SPARE_OWN]
        state[_SPARE_APART], state[_APART] = state[_APART], state[_SPARE_APART]

    @abstractmethod
    def _difference(self, x: Tensor, own: Tensor, apart: Tensor) -> Tensor:
        """What is sent, in the type of `own`."""

    @abstractmethod
    def _move(self, x: Tensor, own: Tensor, apart: Tensor) -> None:
        """Make x the new parameters, from replicas that have changed."""

    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        return self.without_memory.bytes_sent(message_bytes, world_size, topology)


@frozen
class choco_gossip(ReplicaGossip):
    """Send how far parameters are from their replicas, and move towards the neighbours' replicas.

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

    Differs from the paper: replicas begin at the common start and not at 0.
    """

    gamma: Share
    topology: Topology | None = None

    facts: ClassVar[ExchangeFacts] = ExchangeFacts(
        accepts=ALL_KINDS,
        collective=True,
        same_result=False,
        operations=1,
        several_rounds=True,
        returns="mean",
        topology="graph",
        needs_fixed_graph=True,
        follows_parameters=True,
        memory="lossless",
        takes_divided=False,
    )

    def _difference(self, x: Tensor, own: Tensor, apart: Tensor) -> Tensor:
        return x.to(own.dtype, copy=True).sub_(own)

    def _move(self, x: Tensor, own: Tensor, apart: Tensor) -> None:
        x.add_(apart, alpha=self.gamma)


@frozen
class dcd_gossip(ReplicaGossip):
    """Send how parameters are to change, and change them by just what was sent, so that replicas are exact.

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

    facts: ClassVar[ExchangeFacts] = ExchangeFacts(
        accepts=ALL_KINDS,
        collective=True,
        same_result=False,
        operations=1,
        several_rounds=True,
        returns="mean",
        topology="graph",
        needs_fixed_graph=True,
        follows_parameters=True,
        memory="none",
        takes_divided=False,
    )

    def _difference(self, x: Tensor, own: Tensor, apart: Tensor) -> Tensor:
        update = x - own.to(x.dtype)  # from where the last exchange put x, as its type holds it
        return update.to(own.dtype, copy=True).add_(apart)

    def _move(self, x: Tensor, own: Tensor, apart: Tensor) -> None:
        x.copy_(own)


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts that fit into the cache, since arithmetic over two types goes through memory; all on a GPU."""
    first = tensors[0]
    size = _CHUNK if first.device.type == "cpu" else max(1, first.numel())
    for start in range(0, first.numel(), size):
        yield tuple(tensor[start : start + size] for tensor in tensors)


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32
