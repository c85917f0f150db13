"""The model that servers hold: how all ranks meet, so that every push is in it, and how they read it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from relaxcomm.network.byte_counters import EVALUATION
from relaxcomm.network.operations import AllGather, AllReduce, Label
from relaxcomm.network.transport import Pending
from relaxcomm.roles.payload import read
from relaxcomm.step.bound import Bound
from relaxcomm.step.flight import land_all
from relaxcomm.step.plan import TaskKey
from relaxcomm.step.transfer import Transfer
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.shards import shard_sizes


def meet(bound: Bound, asked: Mapping[TaskKey, Transfer], *, evaluates: bool = False) -> None:
    """Hold up no other rank from here on, and have all pushes in when every rank has come here.

    What it costs a rank, which asks all others and answers all, is training's, or evaluation's.

    Args:
        bound: the algorithm on a model.
        asked: this rank's requests on their way, which are answered; their results are not applied.
        evaluates: whose the cost is.
    """
    # Others may wait for this rank where it has asked nothing, and it for them where it has.
    pending = [_step_aside(bound, key, evaluates) for key in bound.state.services if key not in asked]
    land_all(transfer.flight for transfer in asked.values())
    pending += [_step_aside(bound, key, evaluates) for key in asked]
    for one in pending:
        if one is not None:
            bound.world.receive(one)


def step_aside(bound: Bound, asked: Mapping[TaskKey, Transfer]) -> None:
    """Before waiting for what services still answer: hold up nobody where this rank has asked nothing."""
    for index, unit in bound.state.services:
        if asked and bound.algorithm.rules[index].delay and (index, unit) not in asked:
            pending = _step_aside(bound, (index, unit), evaluates=False)
            if pending is not None:
                bound.world.receive(pending)


def _step_aside(bound: Bound, key: TaskKey, evaluates: bool) -> Pending | None:
    (index, unit), transport = key, bound.world.transport
    rule, bucket = bound.algorithm.rules[index], bound.plan.bucket(unit)
    request = rule.exchange.meeting(bound.context(index), bucket, rule.compressor)
    if request is None:
        return None
    pending = transport.issue(request, Label(bound.common_step, str(index), unit))
    if evaluates:
        moved = sum(transport.traffic(request))
        transport.counters.relabel(str(index), EVALUATION, moved, moved)
    return pending


def hold_model(bound: Bound) -> bool:
    """Whether services hold parameters for all ranks."""
    return any(service.part() is not None for service in bound.state.services.values())


def models(bound: Bound, purpose: str, asked: Mapping[TaskKey, Transfer]) -> list[tuple[Bucket, Tensor]]:
    """What servers hold of each bucket, less what ranks have moved and not pushed yet; all ranks call it.

    A rank that has loaded weights counts with these. Messages are labelled with their purpose. Nobody may be
    pushing: all have met, or all have left.

    Args:
        bound: the algorithm on a model.
        purpose: of the messages.
        asked: of this rank's requests, which were answered, those that are not applied yet.
    """
    if not hold_model(bound):
        return []
    found, loaded = [], bound.replica.loaded
    any_loaded = bound.agreements.any(bool(loaded.changed()), purpose, bound.common_step)
    is_loaded = any_loaded and loaded.was_loaded  # if only with what was there
    for (index, unit), service in bound.state.services.items():
        part = service.part()
        if part is not None:
            bucket = bound.plan.bucket(unit)
            whole = _whole(bound, bucket, part, purpose)
            if is_loaded:  # they count as they are, whatever others have pushed
                whole = _mean(bound, bucket, bucket.copy().to(whole.dtype), purpose)
            else:
                left = _unpushed(bound, index, bucket, asked.get((index, unit)))
                if any_loaded:  # not by differences, which whole, if far from what was loaded, would round
                    whole = _mean(bound, bucket, whole.sub_(left), purpose)
                elif bound.agreements.any(bool(torch.count_nonzero(left)), purpose, bound.common_step):
                    whole.sub_(_mean(bound, bucket, left.to(whole.dtype), purpose))
            found.append((bucket, whole.to(bucket.dtype)))
    return found


def _whole(bound: Bound, bucket: Bucket, part: Tensor, purpose: str) -> Tensor:
    """The parts of all ranks as one tensor."""
    sizes = shard_sizes(bucket.numel, bound.world.size)
    padded = part.new_zeros(max(sizes))
    padded[: part.numel()] = part
    label = Label(bound.common_step, purpose, bucket.index)
    rows = bound.world.run(AllGather(padded.to(bucket.device)), label)
    return torch.cat([row[:size] for row, size in zip(rows, sizes, strict=True)])


def _unpushed(bound: Bound, index: int, bucket: Bucket, asked: Transfer | None) -> Tensor:
    """What this rank would push now: nothing where it pushes every step."""
    if asked is not None:
        assert asked.snapshot is not None, "what is late has a snapshot"
        return bucket.subtract_from(asked.snapshot, bucket.temporary())
    rule, slots = bound.algorithm.rules[index], bound.state.slots[index, bucket.index]
    return read(rule.payload, bound.context(index), bucket, slots["payload"], bucket.temporary())


def _mean(bound: Bound, bucket: Bucket, mine: Tensor, purpose: str) -> Tensor:
    return bound.world.run(AllReduce(mine, "mean"), Label(bound.common_step, purpose, bucket.index))
