"""The mean of two ranks."""

from typing import ClassVar

import torch
from torch import Tensor

from example_methods.drawn_pairs import drawn_pairs
from relaxcomm import Topology, TopologyError
from relaxcomm.plugin import (
    DENSE,
    Compressor,
    Context,
    Exchange,
    ExchangeFacts,
    Exchanging,
    Neighbors,
    Stage,
    State,
    finish,
    frozen,
)


@frozen
class pair_average(Exchange):
    """The mean with one other rank in each round: `x_i, x_j <- (x_i + x_j) / 2`; who has no partner waits.

    Args:
        topology: the pairs of each round.

    Example:
        >>> pair_average().stages(world_size=4, topology=drawn_pairs())[0].sent(4, drawn_pairs())
        1.0
    """

    topology: Topology = drawn_pairs()

    facts: ClassVar[ExchangeFacts] = ExchangeFacts(
        accepts=frozenset({DENSE}),
        collective=True,
        same_result=False,
        several_rounds=False,
        returns="mean",
        topology="graph",
        needs_fixed_graph=False,
        follows_parameters=False,
        memory="none",
        takes_divided=False,
        applies_outer=False,
        slots={},
        coding="whole",
        service={},
    )

    def topology_override(self) -> Topology:
        return self.topology

    def check_graph(self, topology: Topology, world_size: int) -> None:
        super().check_graph(topology, world_size)
        for step in range(topology.period_steps(world_size)):
            for rank in range(world_size):
                peers = topology.listeners(rank, world_size, step)
                if len(peers) > 1:
                    raise TopologyError(
                        f"pair_average takes one partner at a time, but rank {rank} has {list(peers)} in "
                        f"{topology!r}; use drawn_pairs or one_peer_exponential with 2 workers, or gossip"
                    )

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        rank, size = cx.membership.rank, cx.membership.world_size
        coding = compressor.encode_decode(cx, tensor, state, keep_sent=False)
        message = next(coding)
        packed = message.pack()
        peers = self.topology.listeners(rank, size, cx.round)
        came = yield Neighbors(
            dict.fromkeys(peers, packed), {peer: torch.empty_like(packed) for peer in peers}
        )
        both = {rank: message, **{peer: message.unpack(data) for peer, data in came.items()}}
        mean, _ = finish(coding, [(1 / len(both), one) for _, one in sorted(both.items())])
        return mean

    def stages(self, world_size: int, topology: Topology) -> list[Stage]:
        return [Stage(Neighbors)]
