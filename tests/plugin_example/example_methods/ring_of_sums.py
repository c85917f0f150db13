"""The mean by partial sums that go round a ring."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm import Topology
from relaxcomm.plugin import (
    DENSE,
    Compressor,
    Context,
    Dense,
    Exchange,
    ExchangeFacts,
    Exchanging,
    Neighbors,
    Stage,
    State,
    finish,
    frozen,
)
from relaxcomm.primitives import all_reduce


@frozen
class ring_of_sums(Exchange):
    """The mean over all workers, `(1/N) sum_n C(x_n)`: each part of it is summed on its way round a ring.

    In N - 1 turns each rank adds its own part to the sum that comes from the left and sends it on to the
    right, so that it ends with one whole sum; in N - 1 more the means go round. Each turn sends 1 / N of a
    message; where means are rounded once, sums are in float32 at least.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import gradients
        >>> trajectory(Rule(payload=gradients(), exchange=ring_of_sums()), [[1.0, 2.0, 6.0]])
        tensor([[3., 3., 3.]])

    Reference: Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations",
        Journal of Parallel and Distributed Computing 69(2), 2009.
    """

    facts: ClassVar[ExchangeFacts] = replace(
        all_reduce.facts, accepts=frozenset({DENSE}), several_rounds=False, takes_divided=False
    )

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        rank, size = cx.membership.rank, cx.membership.world_size
        coding = compressor.encode_decode(cx, tensor, state, keep_sent=False)
        sent = next(coding).tensor
        kept = torch.promote_types(sent.dtype, torch.float32) if cx.exact else sent.dtype
        parts = list(sent.to(kept).tensor_split(size))
        for turn in range(size - 1):
            mine, coming = (rank - turn) % size, (rank - turn - 1) % size
            parts[coming] = parts[coming] + (yield from _pass_on(cx, parts[mine], parts[coming]))
        parts = [(part / size).to(sent.dtype) for part in parts]
        for turn in range(size - 1):
            mine, coming = (rank - turn + 1) % size, (rank - turn) % size
            parts[coming] = yield from _pass_on(cx, parts[mine], parts[coming])
        return finish(coding, [(1.0, Dense(torch.cat(parts)))])[0]

    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        return 2 * _turns(world_size)

    def exact_stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        return _turns(world_size, times_as_wide=2) + _turns(world_size)  # sums of halves in float32


def _pass_on(cx: Context, part: Tensor, like: Tensor) -> Exchanging:
    """Send a part to the right; what comes from the left, which is like another."""
    rank, size = cx.membership.rank, cx.membership.world_size
    left, right = (rank - 1) % size, (rank + 1) % size
    came = yield Neighbors({right: part.contiguous()}, {left: torch.empty_like(like)})
    return came[left]


def _turns(world_size: int, times_as_wide: int = 1) -> list[Stage]:
    """Each part goes to all ranks but the last."""
    turn = Stage(Neighbors, share=times_as_wide / world_size, pairs=partial(_to_the_right, world_size))
    return [turn] * (world_size - 1)


def _to_the_right(world_size: int) -> Mapping[tuple[int, int], float]:
    return {(rank, (rank + 1) % world_size): 1.0 for rank in range(world_size)}
