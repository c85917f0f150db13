"""Making replicas equal: averages outside the rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from relaxcomm.network.operations import Label
from relaxcomm.step import copied_states, optimizer_states, served
from relaxcomm.step.bound import Bound
from relaxcomm.step.broadcasts import copy
from relaxcomm.step.finite import held_error, local_error
from relaxcomm.step.model_means import (
    AVERAGE,
    UNCHANGED,
    all_reduced,
    finite,
    finite_means,
    gathered,
    mean_buckets,
    replace,
    spoilt_in,
)
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.digest import digest
from relaxcomm.tensors.items import Item

_MOMENTS = "the optimizer's"


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
    """Of which parameters what optimizers hold is copied, and from whom; else infinities are on all ranks.

    Raises: NonFiniteError on all ranks; nothing has changed.
    """
    replica, world = bound.replica, bound.world
    copied, root = optimizer_states.without_means(replica, world, names)
    buckets = replica.pack(optimizer_states.moments(replica, set(names) - copied))
    everyone = world.gather_all(spoilt_in(buckets, _MOMENTS), "the check of moments")
    if any(everyone) and not _are_equal(bound, buckets, not_finite=True):  # else that stays
        raise held_error(everyone, bound.clock.step, UNCHANGED)
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
        flats = list(gathered(buckets))
        for bucket, flat in flats:
            for name, view in zip(bucket.names, bucket.views(flat), strict=True):
                view.mul_(weights[name])
        so = "models were averaged, and moments were not"
        replace(bound, finite(bound, all_reduced(bound, flats, AVERAGE), _MOMENTS, so))


def check(bound: Bound, parameters: Sequence[Item]) -> None:
    """Raise NonFiniteError on ranks where some parameters, or with all of them a buffer, are not finite."""
    buffers, is_all = bound.replica.buffers, len(parameters) == len(bound.replica.parameters)
    if is_all:
        buffers.check_shapes(buffers.shapes(), bound.world.rank)  # else they look as NaN
    looked_at = bound.replica.pack([*parameters, *(buffers.statistics() if is_all else ())])
    if bad := spoilt_in(looked_at):
        raise local_error(bad, bound.world.rank, bound.clock.step, "the model is left as it is")


def _are_equal(bound: Bound, buckets: Sequence[Bucket], *, not_finite: bool = False) -> bool:
    """Whether all ranks hold the same in these, bit for bit, or the same of what is not finite."""
    flats = gathered(buckets)
    mine = digest(flat.where(~flat.isfinite(), 0) if not_finite else flat for _, flat in flats)
    differ = len(set(bound.world.gather(mine, "the average of replicas"))) > 1
    return not bound.world.is_any_shard(differ, Label(bound.common_step, "the average of replicas"))
