"""The mean model: what an average of all ranks brings, and where it is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from relaxcomm.errors import UsageError
from relaxcomm.network.operations import AllReduce, Label
from relaxcomm.replica.buffers import is_statistic
from relaxcomm.step import served
from relaxcomm.step.bound import Bound
from relaxcomm.step.finite import NOT_FINITE, non_finite_error, spoilt
from relaxcomm.step.plan import TaskKey
from relaxcomm.step.transfer import Transfer
from relaxcomm.step.world import tensor_of
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.precision import wide

AVERAGE = "average"
"""The label of averages that are a part of training."""

UNCHANGED = "no mean was taken, and every rank's model is left as it is"
_NOTHING: Mapping[TaskKey, Transfer] = MappingProxyType({})


def finite_means(
    bound: Bound,
    purpose: str = AVERAGE,
    asked: Mapping[TaskKey, Transfer] = _NOTHING,
    without: Collection[int] = (),
) -> list[tuple[Bucket, Tensor]]:
    """The mean of trainable parameters and floating-point buffers, or what servers hold in its place.

    Args:
        bound: the algorithm on a model, in which nothing is replaced yet.
        purpose: of the messages.
        asked: what servers have answered and was not applied yet.
        without: ranks that count for nothing.

    Raises: NonFiniteError on all ranks if it is not finite.
    """
    found = finite(bound, means(bound, purpose, asked, without))
    later = _later_statistics(bound)
    if later:
        flats = _of_replicas(bound, gathered(later), purpose)
        found += finite(bound, all_reduced(bound, flats, purpose, without))
    return found


def means(
    bound: Bound,
    purpose: str = AVERAGE,
    asked: Mapping[TaskKey, Transfer] = _NOTHING,
    without: Collection[int] = (),
) -> list[tuple[Bucket, Tensor]]:
    """The mean over all ranks of what an average replaces; this rank's distance from it is measured.

    A server's parameters take the place of the mean of workers that have read them at different times.
    Messages are labelled with their purpose.
    """
    found = served.models(bound, purpose, asked)
    mine = [flat for _, flat in gathered(bucket for bucket, _ in found)] if bound.norms.enabled else []
    flats = gathered(mean_buckets(bound, {name for bucket, _ in found for name in bucket.names}))
    mine += [flat.clone() for _, flat in flats] if bound.norms.enabled else []
    flats = _of_replicas(bound, flats, purpose)
    _add_rests(bound, flats)
    found += all_reduced(bound, flats, purpose, without)
    if mine:
        compared = zip(mine, found, strict=True)
        is_buffers = bound.replica.buffers.hold
        bound.norms.distance(one - mean for one, (bucket, mean) in compared if not is_buffers(bucket))
    return found


def mean_buckets(bound: Bound, without: Collection[str] = ()) -> list[Bucket]:
    """Buckets of what an average replaces, but for parameters that servers hold."""
    items = [
        *(item for item in bound.replica.parameters if item.name not in without),
        *bound.replica.buffers.statistics(),
    ]
    return bound.replica.pack(items)


def replace(bound: Bound, found: Sequence[tuple[Bucket, Tensor]]) -> None:
    """Write means into the replica."""
    bound.replica.reshard()
    for bucket, mean in found:
        bucket.scatter(mean)


def all_reduced(
    bound: Bound, flats: Iterable[tuple[Bucket, Tensor]], purpose: str, without: Collection[int] = ()
) -> list[tuple[Bucket, Tensor]]:
    """The mean over all ranks of each bucket's contents; all are on their way before one is waited for.

    Short types travel as float32, so that ranks that agree are not moved. Some ranks may count for nothing.
    """
    world, pending = bound.world, []
    for bucket, flat in flats:
        mine = flat.to(wide(flat.dtype))
        if without:
            share = world.size / (world.size - len(without))
            mine = torch.zeros_like(mine) if world.rank in without else mine * share
        label = Label(bound.common_step, purpose, bucket.index)
        pending.append((bucket, world.issue(AllReduce(mine, "mean"), label)))
    return [(bucket, tensor_of(world.receive(operation)).to(bucket.dtype)) for bucket, operation in pending]


def finite(
    bound: Bound, found: list[tuple[Bucket, Tensor]], kind: str = "", so: str = UNCHANGED
) -> list[tuple[Bucket, Tensor]]:
    """Means that are the same on all ranks, if all are finite, of moments all that were so before."""
    came = [name for bucket, mean in found for name in spoilt(bucket, mean, kind)]
    put_in = spoilt_in((bucket for bucket, _ in found), kind) if came else []
    is_spoilt = not set(came) <= set(put_in) if kind else bool(came)
    if bound.world.is_any_shard(is_spoilt, Label(bound.common_step, NOT_FINITE)):
        raise non_finite_error(bound.world, put_in, came, bound.clock.step, so=so, replica=bound.replica)
    return found


def spoilt_in(buckets: Iterable[Bucket], kind: str = "") -> list[str]:
    """What of this rank's own holds NaN or infinity."""
    flats = ((bucket, bucket.gather(bucket.empty())) for bucket in buckets)  # one after the other
    return [name for bucket, flat in flats for name in spoilt(bucket, flat, kind)]


def gathered(buckets: Iterable[Bucket]) -> list[tuple[Bucket, Tensor]]:
    """Buckets, each with a copy of what it holds."""
    return [(bucket, bucket.gather(bucket.empty())) for bucket in buckets]


def share_buffers(bound: Bound, buckets: Iterable[Bucket]) -> None:
    """Give the ranks that hold the shards of a replica the mean of its buffers, which each updates alone."""
    for bucket, flat in gathered(buckets) if bound.world.is_sharded else ():
        mean = _of_replica(bound, bucket, flat.clone(), "buffers of a replica")
        # Else each keeps its own, and the exchange finds what is not finite; the host waits for no GPU.
        bucket.scatter(mean.where(mean.isfinite().all(), flat))


def _later_statistics(bound: Bound) -> list[Bucket]:
    """Buffers that were no statistics at attach, and are such on all ranks now."""
    items = bound.replica.buffers.others()
    if not items:
        return []
    mine = [item for item in items if is_statistic(item.tensor)]
    shapes = {item.name: list(item.tensor.shape) for item in mine}
    told = bound.world.gather_all(shapes, "the average of buffers")
    for rank, one in enumerate(told):
        bound.replica.buffers.check_shapes(one, rank)
    common = sorted(set.intersection(*map(set, told)))
    for name in common:
        if any(one[name] != told[0][name] for one in told):
            raise UsageError(
                f"the buffer {name} was empty when the engine was attached, and is averaged; now it has the "
                f"shapes {[one[name] for one in told]} on the ranks, in order. Let it grow to the same shape "
                "on all ranks, or keep it by register_buffer(…, persistent=False), which stays on its rank"
            )
    return bound.replica.pack(item for item in mine if item.name in common)


def _add_rests(bound: Bound, flats: Iterable[tuple[Bucket, Tensor]]) -> None:
    """Add what this rank holds of the mean beside its parameters, such as the rest of a push-sum.

    Beside weights that were loaded it holds nothing.
    """
    if bound.replica.loaded.changed():
        return
    rests = {
        name: view
        for bucket, rest in bound.state.rests(bound.plan)
        for name, view in zip(bucket.names, bucket.views(rest), strict=True)
    }
    for bucket, flat in flats if rests else ():
        for name, view in zip(bucket.names, bucket.views(flat), strict=True):
            if name in rests:
                view.add_(rests[name].to(view.dtype))


def _of_replicas(
    bound: Bound, flats: Iterable[tuple[Bucket, Tensor]], purpose: str
) -> list[tuple[Bucket, Tensor]]:
    """These contents, but of buffers their mean over the ranks that hold the shards of this replica."""
    return [
        (bucket, _of_replica(bound, bucket, flat, purpose) if bound.replica.buffers.hold(bucket) else flat)
        for bucket, flat in flats
    ]


def _of_replica(bound: Bound, bucket: Bucket, flat: Tensor, purpose: str) -> Tensor:
    """The mean of a bucket of buffers over the ranks that hold the shards of this replica."""
    return bound.world.mean_over_shards(flat, Label(bound.common_step, purpose, bucket.index))
