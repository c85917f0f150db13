"""Means over the ranks that hold the shards of one replica, of buffers, which each updates alone."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from relaxcomm.network.operations import Label
from relaxcomm.step.bound import Bound
from relaxcomm.tensors.buckets import Bucket


def share_buffers(bound: Bound, buckets: Iterable[Bucket]) -> None:
    """Give the ranks that hold the shards of a replica the mean of its buffers, which each updates alone."""
    for bucket, flat in gathered(buckets) if bound.world.is_sharded else ():
        mean = _of_replica(bound, bucket, flat.clone(), "buffers of a replica")
        # Else each keeps its own, and the exchange finds what is not finite; the host waits for no GPU.
        bucket.scatter(mean.where(mean.isfinite().all(), flat))


def of_replicas(
    bound: Bound, flats: Iterable[tuple[Bucket, Tensor]], purpose: str
) -> list[tuple[Bucket, Tensor]]:
    """These contents, but of buffers their mean over the ranks that hold the shards of this replica."""
    return [
        (bucket, _of_replica(bound, bucket, flat, purpose) if bound.replica.holds_buffers(bucket) else flat)
        for bucket, flat in flats
    ]


def _of_replica(bound: Bound, bucket: Bucket, flat: Tensor, purpose: str) -> Tensor:
    """The mean of a bucket of buffers over the ranks that hold the shards of this replica."""
    return bound.world.mean_over_shards(flat, Label(bound.common_step, purpose, bucket.index))


def gathered(buckets: Iterable[Bucket]) -> list[tuple[Bucket, Tensor]]:
    """Buckets, each with a copy of what it holds."""
    return [(bucket, bucket.gather(bucket.empty())) for bucket in buckets]
