"""The model that servers hold: how all ranks meet, so that every push is in it, and how they read it."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.network.operations import AllGather, AllReduce, Label
from relaxcomm.network.transport import EVALUATION
from relaxcomm.step.bound import Bound
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.shards import shard_sizes


def meet(bound: Bound, *, evaluates: bool = False) -> None:
    """Wait until every rank is here and all its pushes are in; who waits here holds up no other rank.

    What it costs a rank, which asks all others and answers all, is training's, or evaluation's.
    """
    pending, transport = [], bound.world.transport
    for index, unit in bound.state.services:
        rule, bucket = bound.algorithm.rules[index], _bucket(bound, unit)
        request = rule.exchange.meeting(bound.context(index), bucket, rule.compressor)
        if request is not None:
            pending.append(transport.issue(request, Label(bound.common_step, str(index), unit)))
            if evaluates:
                moved = sum(transport.traffic(request))
                transport.counters.relabel(str(index), EVALUATION, moved, moved)
    for one in pending:
        bound.world.receive(one)


def hold_model(bound: Bound) -> bool:
    """Whether services hold parameters for all ranks."""
    return any(service.part() is not None for service in bound.state.services.values())


def models(bound: Bound, purpose: str) -> list[tuple[Bucket, Tensor]]:
    """What servers hold of each bucket, less what ranks have moved and not pushed yet; all ranks call it.

    Messages are labelled with their purpose. Nobody may be pushing: all have met, or all have left.
    """
    found = []
    for (index, unit), service in bound.state.services.items():
        part = service.part()
        if part is not None:
            bucket = _bucket(bound, unit)
            found.append(
                (bucket, _less_unpushed(bound, index, bucket, _whole(bound, bucket, part, purpose), purpose))
            )
    return found


def _whole(bound: Bound, bucket: Bucket, part: Tensor, purpose: str) -> Tensor:
    """The parts of all ranks as one tensor."""
    sizes = shard_sizes(bucket.numel, bound.world.size)
    padded = part.new_zeros(max(sizes))
    padded[: part.numel()] = part
    label = Label(bound.common_step, purpose, bucket.index)
    rows = bound.world.run(AllGather(padded.to(bucket.device)), label)
    return torch.cat([row[:size] for row, size in zip(rows, sizes, strict=True)])


def _less_unpushed(bound: Bound, index: int, bucket: Bucket, whole: Tensor, purpose: str) -> Tensor:
    """The server's model with the mean of what ranks would push now: nothing where they push every step."""
    rule, slots = bound.algorithm.rules[index], bound.state.slots[index, bucket.index]
    left = rule.payload.read(bound.context(index), bucket, slots["payload"], bucket.temporary())
    if bound.agreements.any(bool(torch.count_nonzero(left)), purpose, bound.common_step):
        label = Label(bound.common_step, purpose, bucket.index)
        whole = whole.sub_(bound.world.run(AllReduce(left.to(whole.dtype), "mean"), label))
    return whole.to(bucket.dtype)


def _bucket(bound: Bound, unit: int) -> Bucket:
    assert bound.plan.buckets is not None, "services are made with the buckets"
    return bound.plan.buckets[unit]
