"""What exchanges have in common in which each rank combines one shard of a bucket for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from relaxcomm.network.transport import Membership
from relaxcomm.primitives.exchanges.all_reduce import in_parts
from relaxcomm.roles import Compressor, Exchange, Stage
from relaxcomm.roles.carried import nested
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.shards import shard_bucket, shard_layouts
from relaxcomm.topology import Topology


class ShardedExchange(Exchange):
    """Each shard of a bucket is coded on its own, and sent to its rank, and what becomes of it to all."""

    def coding_slots(
        self, bucket: Bucket, compressor: Compressor, membership: Membership
    ) -> Mapping[str, Tensor]:
        slots: dict[str, Tensor] = {}
        for index, layout in enumerate(shard_layouts(bucket.layout, membership.world_size)):
            slots |= nested(index, compressor.init(shard_bucket(bucket, layout)))
        return slots

    def coded_bytes(self, compressor: Compressor, layout: Layout, element_bytes: int, world_size: int) -> int:
        shards = shard_layouts(layout, world_size)  # whose messages are as long as the longest of them
        return world_size * max(compressor.layout_bytes(shard, element_bytes) for shard in shards)

    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        return in_parts(world_size)
