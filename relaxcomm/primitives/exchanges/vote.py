"""The majority of signs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.kernels.dispatch import is_for_kernels
from relaxcomm.kernels.level_packing import pack_nonnegative
from relaxcomm.kernels.message_sums import stacked, sum_levels
from relaxcomm.primitives.exchanges.message_rows import gather, scatter
from relaxcomm.primitives.exchanges.scatter_gather import scatter_gather
from relaxcomm.primitives.exchanges.shard_codings import shard_codings
from relaxcomm.primitives.exchanges.sharded_exchange import ShardedExchange
from relaxcomm.roles import Compressor, Context, ExchangeFacts, Exchanging, State
from relaxcomm.tensors.bit_packing import pack_codes, unpack_codes
from relaxcomm.tensors.messages import SIGNS, Message, Signs


@frozen
class vote(ShardedExchange):
    """The sign that most workers have: `sign(sum_n sign(x_n))`, 1 or -1 for each entry.

    Each worker counts the votes on one part for all and sends the majority back, one bit an entry in both
    directions. Where there are as many for as against, the worker that counts decides by its own sign. A
    tensor that is not finite on some worker becomes NaN on all.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import gradients, sign, vote
        >>> rule = Rule(payload=gradients(), compressor=sign(), exchange=vote())
        >>> trajectory(rule, [[0.1, 0.2, -9.0]])
        tensor([[1., 1., 1.]])

    Reference: Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault Tolerant",
        ICLR 2019.

    Differs from the paper: there is no server; entries with as many for as against do not become 0.
    """

    facts: ClassVar[ExchangeFacts] = replace(
        scatter_gather.facts, accepts=frozenset({SIGNS}), returns="votes", coding="parts"
    )

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        rank, shards = cx.membership.rank, shard_codings(cx, tensor, compressor, state)
        messages = shards.messages
        received = yield from scatter(messages)
        rows = yield from gather(_majority(messages[rank], received, rank), messages)
        return shards.decoded([one.unpack(row) for one, row in zip(messages, rows, strict=True)])


def _majority(local: Message, rows: Tensor, rank: int) -> Signs:
    """What most of the received messages say, as signs of size 1."""
    assert isinstance(local, Signs), f"votes are counted on signs, got {local!r}"
    messages = [local.unpack(row) for row in rows]
    if is_for_kernels(local.steps):
        return _majority_at_once(local, messages, rank)
    numel = local.segments.numel
    count = torch.zeros(numel, dtype=torch.int32, device=local.codes.device)
    steps = torch.full_like(local.steps, 2.0)
    for voter, message in enumerate(messages):
        count += unpack_codes(message.codes, numel, 2) * (3 if voter == rank else 2)
        steps += 0 * message.steps  # NaN where the voter's tensor is not finite
    return replace(local, codes=pack_codes(count.gt(len(rows)).view(torch.uint8), 2), steps=steps)


def _majority_at_once(local: Signs, messages: Sequence[Signs], rank: int) -> Signs:
    """The majority in a number of launches that does not depend on how many vote."""
    codes, steps = (stacked([getattr(message, name) for message in messages]) for name in ("codes", "steps"))
    weights = tuple(1.5 if voter == rank else 1.0 for voter in range(len(messages)))  # no sum of these is 0
    weighted = device_numbers(weights, torch.float32, codes.device)
    total = sum_levels(codes, torch.ones_like(steps), None, weighted, local.segments, 2)
    agreed = pack_nonnegative(total, local.segments)
    return replace(local, codes=agreed, steps=(0 * steps).sum(0) + 2)
