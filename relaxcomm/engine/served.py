"""The model that servers hold: how all ranks meet, so that every push is in it, and how they read it."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.engine.run import Run
from relaxcomm.network.operations import AllGather, AllReduce, Label
from relaxcomm.network.transport import EVALUATION
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.shards import piece_sizes


def meet(run: Run, *, evaluates: bool = False) -> None:
    """Wait until every rank is here and all its pushes are in; who waits here holds up no other rank.

    What it costs a rank, which asks all others and answers all, is training's, or evaluation's.
    """
    pending, counters = [], run.transport.counters
    for index, unit in run.services:
        rule, bucket = run.algorithm.rules[index], _bucket(run, unit)
        request = rule.exchange.meeting(run.context(rule), bucket, rule.compressor)
        if request is not None:
            pending.append(run.transport.issue(request, Label(run.common_step, str(index), unit)))
            if evaluates:
                moved = sum(run.transport.traffic(request))
                counters.relabel(str(index), EVALUATION, moved, moved)
    for one in pending:
        with run.statistics.waiting():
            one.wait()


def hold_model(run: Run) -> bool:
    """Whether services hold parameters for all ranks."""
    return any(service.part() is not None for service in run.services.values())


def models(run: Run, purpose: str) -> list[tuple[Bucket, Tensor]]:
    """What servers hold of each bucket, less what ranks have moved and not pushed yet; all ranks call it.

    Messages are labelled with their purpose. Nobody may be pushing: all have met, or all have left.
    """
    found = []
    for (index, unit), service in run.services.items():
        part = service.part()
        if part is not None:
            bucket = _bucket(run, unit)
            found.append(
                (bucket, _less_unpushed(run, index, bucket, _whole(run, bucket, part, purpose), purpose))
            )
    return found


def _whole(run: Run, bucket: Bucket, part: Tensor, purpose: str) -> Tensor:
    """The parts of all ranks as one tensor."""
    sizes = piece_sizes(bucket.numel, run.transport.membership.world_size)
    padded = part.new_zeros(max(sizes))
    padded[: part.numel()] = part
    label = Label(run.common_step, purpose, bucket.index)
    with run.statistics.waiting():
        rows = run.transport.issue(AllGather(padded.to(bucket.device)), label).wait()
    assert isinstance(rows, Tensor)
    return torch.cat([row[:size] for row, size in zip(rows, sizes, strict=True)])


def _less_unpushed(run: Run, index: int, bucket: Bucket, whole: Tensor, purpose: str) -> Tensor:
    """The server's model with the mean of what ranks would push now: nothing where they push every step."""
    rule, state = run.algorithm.rules[index], run.state[index, bucket.index]
    left = rule.payload.read(run.context(rule), bucket, state["payload"], bucket.temporary())
    with run.statistics.waiting():
        anyone = run.anyone(bool(torch.count_nonzero(left)), purpose).wait()
    assert isinstance(anyone, Tensor)
    if anyone.item():
        label = Label(run.common_step, purpose, bucket.index)
        with run.statistics.waiting():
            mean = run.transport.issue(AllReduce(left.to(whole.dtype), "mean"), label).wait()
        assert isinstance(mean, Tensor)
        whole = whole.sub_(mean)
    return whole.to(bucket.dtype)


def _bucket(run: Run, unit: int) -> Bucket:
    assert run.buckets is not None, "services are made with the buckets"
    return run.buckets[unit]
