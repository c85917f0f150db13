"""The mean model: what an average of all ranks brings, and where it is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from relaxcomm.errors import UsageError
from relaxcomm.network.byte_counters import EVALUATION
from relaxcomm.network.operations import AllReduce, Label
from relaxcomm.network.transport import Pending
from relaxcomm.replica.buffers import is_statistic
from relaxcomm.step import broadcasts, served
from relaxcomm.step.bound import Bound
from relaxcomm.step.finite import NOT_FINITE, non_finite_error, spoilt
from relaxcomm.step.plan import TaskKey
from relaxcomm.step.transfer import Transfer
from relaxcomm.step.world import tensor_of
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import which_finite
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.precision import wide

AVERAGE = "average"
"""The label of averages that are a part of training."""

UNCHANGED = "no mean was taken, and every rank's model is left as it is"
_AT_ONCE = 4  # buckets on their way: more need memory, and the network is busy with these
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
    if later := _later_statistics(bound):
        found += finite(bound, all_reduced(bound, _put_in(bound, later, purpose), purpose, without))
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
    known = {name for bucket, _ in found for name in bucket.names}
    if purpose == EVALUATION:  # whoever else averages has compared replicas before
        known |= _equal(bound)
    buckets = mean_buckets(bound, known)
    found += all_reduced(bound, _put_in(bound, buckets, purpose), purpose, without)
    if bound.norms.enabled:
        of_parameters = ((one, mean) for one, mean in found if not bound.replica.buffers.hold(one))
        bound.norms.distance(one.subtract_from(mean, one.temporary()) for one, mean in of_parameters)
    return found


def differing(bound: Bound, items: Sequence[Item], purpose: str) -> list[str]:
    """Names of the tensors of which the ranks hold different bits; all ranks ask at the same place."""
    world, label = bound.world, Label(bound.common_step, purpose)
    bad = broadcasts.differing(items, lambda asked: world.run(asked, label))  # shards of a replica differ
    differs = world.over_shards(bad.double(), label)
    return [item.name for item, is_other in zip(items, differs.tolist(), strict=True) if is_other]


def _equal(bound: Bound) -> set[str]:
    """Parameters that are equal by the algorithm, and found to be so: they are their own mean, and not sent.

    A sum of equal numbers, divided by how many they are, may be the number beside them.
    """
    if bound.algorithm.lets_replicas_differ or bound.world.is_sharded:  # shards decide together
        return set()
    items = bound.replica.parameters
    left = set(differing(bound, items, EVALUATION))
    are_finite = which_finite([item.tensor for item in items])
    return {item.name for item, good in zip(items, are_finite, strict=True) if good} - left


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
    """The mean over all ranks of each bucket's contents; some are on their way before one is waited for.

    Short types travel as float32, so that ranks that agree are not moved. Some ranks may count for nothing.
    """
    world, found = bound.world, list[tuple[Bucket, Tensor]]()
    pending = deque[tuple[Bucket, Pending]]()

    def land() -> None:
        bucket, operation = pending.popleft()
        found.append((bucket, tensor_of(world.receive(operation)).to(bucket.dtype)))

    for bucket, flat in flats:
        mine = flat.to(wide(flat.dtype))
        if without:
            share = world.size / (world.size - len(without))
            mine = torch.zeros_like(mine) if world.rank in without else mine * share
        label = Label(bound.common_step, purpose, bucket.index)
        pending.append((bucket, world.issue(AllReduce(mine, "mean"), label)))
        if len(pending) > _AT_ONCE:
            land()
    while pending:
        land()
    return found


def finite(
    bound: Bound, found: list[tuple[Bucket, Tensor]], kind: str = "", so: str = UNCHANGED
) -> list[tuple[Bucket, Tensor]]:
    """Means that are the same on all ranks, if all are finite, of moments all that were so before."""
    is_good = all(which_finite([mean for _, mean in found]))  # for which a GPU is waited for once
    came = [] if is_good else [name for bucket, mean in found for name in spoilt(bucket, mean, kind)]
    put_in = spoilt_in((bucket for bucket, _ in found), kind) if came else []
    is_spoilt = not set(came) <= set(put_in) if kind else bool(came)
    if bound.world.is_any_shard(is_spoilt, Label(bound.common_step, NOT_FINITE)):
        raise non_finite_error(bound.world, put_in, came, bound.clock.step, so=so, replica=bound.replica)
    return found


def spoilt_in(buckets: Iterable[Bucket], kind: str = "") -> list[str]:
    """What of this rank's own holds NaN or infinity."""
    return [name for bucket, flat in gathered(buckets) for name in spoilt(bucket, flat, kind)]


def gathered(buckets: Iterable[Bucket]) -> Iterator[tuple[Bucket, Tensor]]:
    """Buckets, each with a copy of what it holds, which is made when it is asked for."""
    return ((bucket, bucket.gather(bucket.empty())) for bucket in buckets)


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


def _put_in(bound: Bound, buckets: Iterable[Bucket], purpose: str) -> Iterator[tuple[Bucket, Tensor]]:
    """What this rank puts into the mean of each bucket: what it holds, of buffers the mean over the shards of
    its replica; and what it has of the mean beside parameters, unless these were loaded, as of a push-sum.
    """
    rests = {
        name: view
        for bucket, rest in (() if bound.replica.loaded.changed() else bound.state.rests(bound.plan))
        for name, view in zip(bucket.names, bucket.views(rest), strict=True)
    }
    for bucket, flat in gathered(buckets):
        if bound.replica.buffers.hold(bucket):
            flat = _of_replica(bound, bucket, flat, purpose)
        for name, view in zip(bucket.names, bucket.views(flat), strict=True) if rests else ():
            if name in rests:
                view.add_(rests[name].to(view.dtype))
        yield bucket, flat


def _of_replica(bound: Bound, bucket: Bucket, flat: Tensor, purpose: str) -> Tensor:
    """The mean of a bucket of buffers over the ranks that hold the shards of this replica."""
    return bound.world.mean_over_shards(flat, Label(bound.common_step, purpose, bucket.index))
