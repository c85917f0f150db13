"""Gossip with compressed messages: neighbours send how they have changed, and all keep what was sent."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from relaxcomm.buckets import Bucket
from relaxcomm.frozen import Share, frozen
from relaxcomm.messages import ALL_KINDS
from relaxcomm.pieces import PieceState
from relaxcomm.primitives.compressors.reading import as_dense
from relaxcomm.primitives.exchanges import gossip, mix
from relaxcomm.protocol import Compressor, Context, Exchange, Exchanging, State
from relaxcomm.topology import Topology
from relaxcomm.transport.base import Membership

_OWN, _MIXED = "own", "mixed"
_INNER = 0


class ReplicaGossip(Exchange):
    """Gossip of differences to replicas `r_j`, which rank j and its neighbours change alike.

    `q_i = C(difference)` goes to all neighbours, and then `r_j <- r_j + q_j`. A rank keeps its own replica
    and the mixture `sum_j W_ij r_j` of its neighbours', two tensors whatever their number, wide enough
    that roundings do not add up. They begin at the parameters of rank 0, which all ranks start from.
    """

    topology: Topology | None = None

    accepts: ClassVar[frozenset[str]] = ALL_KINDS
    same_result: ClassVar[bool] = False
    uses_topology: ClassVar[Literal["complete", "graph", "groups"]] = "graph"
    needs_fixed_graph: ClassVar[bool] = True
    follows_parameters: ClassVar[bool] = True

    def own_topology(self) -> Topology | None:
        return self.topology

    @property
    def plain(self) -> Exchange:
        return gossip(topology=self.topology)

    def coding_slots(
        self, bucket: Bucket, compressor: Compressor, membership: Membership
    ) -> Mapping[str, Tensor]:
        start = bucket.gather(bucket.empty())
        slots = {_OWN: start.to(_wide(start.dtype)), _MIXED: start.to(_wide(start.dtype), copy=True)}
        PieceState(slots, _INNER).update(compressor.init(bucket))
        return slots

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        difference = self._difference(tensor, state[_OWN], state[_MIXED]).to(tensor.dtype)
        coding = compressor.code(cx, difference, PieceState(state, _INNER), keep_own=True)
        change, own = yield from mix(cx, self.topology or cx.topology, coding)
        assert own is not None
        state[_OWN] = state[_OWN] + as_dense(own, tensor)
        state[_MIXED] = state[_MIXED] + change
        return self._result(tensor, state[_OWN], state[_MIXED]).to(tensor.dtype)

    @abstractmethod
    def _difference(self, tensor: Tensor, own: Tensor, mixed: Tensor) -> Tensor:
        """What is sent."""

    @abstractmethod
    def _result(self, tensor: Tensor, own: Tensor, mixed: Tensor) -> Tensor:
        """The new parameters, from replicas that have changed."""

    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        return self.plain.bytes_sent(message_bytes, world_size, topology)


@frozen
class choco_gossip(ReplicaGossip):
    """Send how far parameters are from their replicas, and move towards the neighbours' replicas.

    `q_i = C(x_i - r_i)`, `r_j <- r_j + q_j`, `x_i <- x_i + gamma sum_j W_ij (r_j - r_i)`. The mean of all x
    stays as it is, whatever C leaves out, and what it leaves out is in the next difference.

    Args:
        gamma: the size of the move, in (0, 1]; the more C leaves out, the smaller.
        topology: the graph, which must stay the same; None for the configured one.

    Example:
        >>> choco_gossip(gamma=0.4)
        choco_gossip(gamma=0.4)

    Reference: Koloskova, Stich and Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms
        with Compressed Communication", ICML 2019.

    Differs from the paper: replicas begin at the common start and not at 0.
    """

    gamma: Share
    topology: Topology | None = None

    sends_rest: ClassVar[bool] = True

    def _difference(self, tensor: Tensor, own: Tensor, mixed: Tensor) -> Tensor:
        return tensor - own

    def _result(self, tensor: Tensor, own: Tensor, mixed: Tensor) -> Tensor:
        return torch.sub(mixed, own).mul_(self.gamma).add_(tensor)


@frozen
class dcd_gossip(ReplicaGossip):
    """Send how parameters are to change, and change them by just what was sent, so that replicas are exact.

    With y_i what the optimizer has made of x_i: `q_i = C(sum_j W_ij x_j + (y_i - x_i) - x_i)` and
    `x_j <- x_j + q_j`. Without loss this is `x_i <- sum_j W_ij x_j + (y_i - x_i)`, gossip before the
    update. What C leaves out is gone, so C should be unbiased and lose little: a few bits an entry.

    Args:
        topology: the graph, which must stay the same; None for the configured one.

    Example:
        >>> dcd_gossip()
        dcd_gossip()

    Reference: Tang et al., "Communication Compression for Decentralized Training", NeurIPS 2018.
    """

    topology: Topology | None = None

    def _difference(self, tensor: Tensor, own: Tensor, mixed: Tensor) -> Tensor:
        return (mixed - own).add_(tensor - own)

    def _result(self, tensor: Tensor, own: Tensor, mixed: Tensor) -> Tensor:
        return own


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32
