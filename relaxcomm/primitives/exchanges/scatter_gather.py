"""Exchanges in which each worker combines one part of the messages for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.transport import Membership
from relaxcomm.primitives.compressors.error_feedback import error_feedback
from relaxcomm.primitives.exchanges.all_gather import all_gather
from relaxcomm.primitives.exchanges.message_rows import gather, scatter
from relaxcomm.primitives.exchanges.shard_codings import shard_codings
from relaxcomm.primitives.exchanges.sharded_exchange import ShardedExchange
from relaxcomm.roles import Compressor, Context, ExchangeFacts, Exchanging, State
from relaxcomm.roles.carried import nested
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.messages import ALL_KINDS
from relaxcomm.tensors.shards import NestedState, shard_bucket, shard_layouts


@frozen
class scatter_gather(ShardedExchange):
    """Each worker decodes and averages one part of all messages, and sends the mean back, coded again.

    With x cut into N parts, worker m gets `C(x_n[m])` from every n, forms `a_m = (1/N) sum_n C(x_n[m])`, and
    all get `C(a_m)`. A rank sends `2 (N - 1) / N` of a message, as a ring does of summable ones; each
    part is coded on its own. All ranks decode the same bytes, so they end with the same result.

    Args:
        server_feedback: keep what the second coding leaves out and add it to the next mean (two-sided error
            feedback, with `error_feedback` around the rule's compressor). Without it the second coding
            has no memory, whatever the first one has.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import gradients, quantize, scatter_gather
        >>> rule = Rule(payload=gradients(), compressor=quantize(bits=8), exchange=scatter_gather())
        >>> trajectory(rule, [[[0.0, 1.0], [2.0, 4.0]]])
        tensor([[[1.0000, 2.5000],
                 [1.0000, 2.5000]]])

    Reference: Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2022;
        Tang et al., "DoubleSqueeze", ICML 2019, for the second residual.
    """

    server_feedback: bool = False

    facts: ClassVar[ExchangeFacts] = replace(
        all_gather.facts, accepts=ALL_KINDS, several_rounds=False, coding="parts and mean"
    )

    def keeps_residuals(self, compressor: Compressor) -> bool:
        return self.server_feedback or super().keeps_residuals(compressor)

    def takes_difference(self, compressor: Compressor, tensor: Tensor) -> bool:
        return compressor.makes_difference(tensor)

    def coding_slots(
        self, bucket: Bucket, compressor: Compressor, membership: Membership
    ) -> Mapping[str, Tensor]:
        num_shards = membership.world_size
        mine = shard_bucket(bucket, shard_layouts(bucket.layout, num_shards)[membership.rank])
        mean_slots = nested(num_shards, self._second(compressor).init(mine))
        return {**super().coding_slots(bucket, compressor, membership), **mean_slots}

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        rank, num_shards = cx.membership.rank, cx.membership.world_size
        shards = shard_codings(cx, tensor, compressor, state)
        messages, known = list(shards.messages), shards.known[rank]
        came = yield from scatter(messages)
        mean = shards.sum(rank, [(1 / num_shards, messages[rank].unpack(row)) for row in came])
        del came  # as much as was sent, while the means are on their way
        again = known.part(0, mean.numel())  # a place of its own: its draws are not those of the first
        again = again.at(difference=None, out=known.out)
        if not self.server_feedback:  # which keeps what a shorter type cannot hold
            mean = mean.to(tensor.dtype)
        mean_coding = self._second(compressor).encode_decode(
            again, mean, NestedState(state, num_shards), keep_sent=False
        )
        message = next(mean_coding)
        rows = yield from gather(message, messages)
        messages[rank] = message
        means = [one.unpack(row) for one, row in zip(messages, rows, strict=True)]
        return shards.result(means, rank, mean_coding)

    def _second(self, compressor: Compressor) -> Compressor:
        """What codes the means."""
        memoryless = compressor.without_memory
        return error_feedback(compressor=memoryless) if self.server_feedback else memoryless
