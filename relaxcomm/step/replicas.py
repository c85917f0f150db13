"""Making replicas equal: averages outside the rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from relaxcomm.errors import UsageError
from relaxcomm.network.operations import AllReduce, Label
from relaxcomm.replica.buffers import is_statistic
from relaxcomm.step import copied_states, optimizer_states, served
from relaxcomm.step.bound import Bound
from relaxcomm.step.broadcasts import copy
from relaxcomm.step.finite import NOT_FINITE, held_error, local_error, non_finite_error, spoilt
from relaxcomm.step.plan import TaskKey
from relaxcomm.step.shard_means import gathered, of_replicas
from relaxcomm.step.transfer import Transfer
from relaxcomm.step.world import tensor_of
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.digest import digest
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.precision import wide

AVERAGE = "average"
"""The label of averages that are a part of training."""

_MOMENTS = "the optimizer's"
_UNCHANGED = "no mean was taken, and every rank's model is left as it is"
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
    found = _finite(bound, means(bound, purpose, asked, without))
    later = _later_statistics(bound)
    if later:
        flats = of_replicas(bound, gathered(later), purpose)
        found += _finite(bound, _all_reduced(bound, flats, purpose, without))
    return found


def replace(bound: Bound, found: Sequence[tuple[Bucket, Tensor]]) -> None:
    """Write means into the replica."""
    bound.replica.reshard()
    for bucket, mean in found:
        bucket.scatter(mean)


def equalise(bound: Bound, *, moments: Collection[str] = (), without: Collection[int] = ()) -> None:
    """Average replicas that differ, and what their optimizers hold of some parameters.

    Rules that keep replicas equal need equal optimizers too. What is equal bit for bit is not sent, unless
    servers hold the model, who may have more.

    Args:
        bound: the algorithm on a model.
        moments: names of the parameters of which optimizers are to hold the same.
        without: ranks that count for nothing, as they hold a copy of one, to which they would move the mean.

    Raises: NonFiniteError on all ranks, and nothing is replaced but where a sum of moments overflows.
    """
    copied = check_moments(bound, moments) if moments else None
    if served.hold_model(bound) or not _are_equal(bound, mean_buckets(bound)):
        replace(bound, finite_means(bound, without=without))
    if copied is not None:
        _equalise_optimizers(bound, moments, *copied)


def admit(bound: Bound, joined: Collection[int]) -> None:
    """Give ranks that have joined, and hold the copy of one, the mean of the others, who keep their own."""
    if not _are_equal(bound, bound.replica.pack(bound.replica.parameters)):
        found = finite_means(bound, without=joined)
        if bound.world.rank in joined:
            replace(bound, found)


def check_moments(bound: Bound, names: Collection[str]) -> tuple[set[str], int]:
    """Of which parameters what optimizers hold is copied, and from whom; all else has a finite mean.

    Raises: NonFiniteError on all ranks; nothing has changed.
    """
    replica, world = bound.replica, bound.world
    copied, root = optimizer_states.without_means(replica, world, names)
    buckets = replica.pack(optimizer_states.moments(replica, set(names) - copied))
    everyone = world.gather_all(_spoilt(buckets, _MOMENTS), "the check of moments")
    if any(everyone) and not _are_equal(bound, buckets):  # else they stay
        raise held_error(everyone, bound.clock.step, _UNCHANGED)
    return copied, root


def _equalise_optimizers(bound: Bound, names: Collection[str], copied: set[str], root: int) -> None:
    """Average what they hold of some parameters; what has no mean, and their settings, are one rank's."""
    replica, world = bound.replica, bound.world
    covers = all(item.name in names for item in replica.parameters)
    items, left = copied_states.begin_as(replica, world, root, copied, settings=covers)
    copy(items, world.transport, replica.bucket_bytes, root=root)
    copied_states.warn_of_left("the average of replicas", left)
    weights = optimizer_states.make_alike(replica, world, set(names) - copied)
    buckets = replica.pack(optimizer_states.moments(replica, set(names) - copied))
    if not _are_equal(bound, buckets):
        flats = gathered(buckets)
        for bucket, flat in flats:
            for name, view in zip(bucket.names, bucket.views(flat), strict=True):
                view.mul_(weights[name])
        so = "models were averaged, and moments were not"
        replace(bound, _finite(bound, _all_reduced(bound, flats, AVERAGE), _MOMENTS, so))


def check(bound: Bound, parameters: Sequence[Item]) -> None:
    """Raise NonFiniteError on ranks where some parameters, or with all of them a buffer, are not finite."""
    is_all = len(parameters) == len(bound.replica.parameters)
    if is_all:
        bound.replica.check_shapes(bound.replica.buffer_shapes(), bound.world.rank)  # else they look as NaN
    looked_at = bound.replica.pack([*parameters, *(bound.replica.buffers() if is_all else ())])
    if bad := _spoilt(looked_at):
        raise local_error(bad, bound.world.rank, bound.clock.step, "the model is left as it is")


def _spoilt(buckets: Iterable[Bucket], kind: str = "") -> list[str]:
    """What of this rank's own holds NaN or infinity."""
    flats = ((bucket, bucket.gather(bucket.empty())) for bucket in buckets)  # one after the other
    return [name for bucket, flat in flats for name in spoilt(bucket, flat, kind)]


def _finite(
    bound: Bound, found: list[tuple[Bucket, Tensor]], kind: str = "", so: str = _UNCHANGED
) -> list[tuple[Bucket, Tensor]]:
    """Means that are the same on all ranks, if all of them are finite."""
    came = [name for bucket, mean in found for name in spoilt(bucket, mean, kind)]
    if bound.world.is_any_shard(bool(came), Label(bound.common_step, NOT_FINITE)):
        put_in = _spoilt((bucket for bucket, _ in found), kind)
        raise non_finite_error(bound.world, put_in, came, bound.clock.step, so=so, replica=bound.replica)
    return found


def _are_equal(bound: Bound, buckets: Sequence[Bucket]) -> bool:
    """Whether all ranks hold the same in these, bit for bit."""
    mine = digest(bucket.gather(bucket.empty()) for bucket in buckets)
    differ = len(set(bound.world.gather(mine, "the average of replicas"))) > 1
    return not bound.world.is_any_shard(differ, Label(bound.common_step, "the average of replicas"))


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
    flats = of_replicas(bound, flats, purpose)
    _add_rests(bound, flats)
    found += _all_reduced(bound, flats, purpose, without)
    if mine:
        compared = zip(mine, found, strict=True)
        is_buffers = bound.replica.holds_buffers
        bound.norms.distance(one - mean for one, (bucket, mean) in compared if not is_buffers(bucket))
    return found


def _later_statistics(bound: Bound) -> list[Bucket]:
    """Buffers that were no statistics at attach, and are such on all ranks now."""
    items = bound.replica.maybe_buffers()
    if not items:
        return []
    mine = [item for item in items if is_statistic(item.tensor)]
    shapes = {item.name: list(item.tensor.shape) for item in mine}
    told = bound.world.gather_all(shapes, "the average of buffers")
    for rank, one in enumerate(told):
        bound.replica.check_shapes(one, rank)
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


def _all_reduced(
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
    return [
        (bucket, tensor_of(bound.world.receive(operation)).to(bucket.dtype)) for bucket, operation in pending
    ]


def mean_buckets(bound: Bound, without: Collection[str] = ()) -> list[Bucket]:
    """Buckets of what an average replaces, but for parameters that servers hold."""
    items = [
        *(item for item in bound.replica.parameters if item.name not in without),
        *bound.replica.buffers(),
    ]
    return bound.replica.pack(items)
