"""Which parameters get a `.grad` though this rank has not used them, and which are moved by nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from relaxcomm.network.operations import Label
from relaxcomm.step.agreements import Answer
from relaxcomm.step.bound import Bound
from relaxcomm.step.gradient_transfers import GradientTransfers

_USED, _SENT = "used parameters", "parameters with a residual"
_TRAINED = 2.0**-12  # what a rank that trains one adds to the number of those that use it: exact for 4095


def ask(bound: Bound, buckets: Sequence[GradientTransfers]) -> Answer | None:
    """Ask which parameters any rank has used or trains, unless messages say it; it goes beside them."""
    if all(bucket.firing.carries_flags and not bucket.awaits_first for bucket in buckets):
        return None
    used = torch.cat([one.used_here() for one in buckets])
    flags = used.add(torch.cat([one.trained for one in buckets]), alpha=_TRAINED)
    # On a GPU only who lacks a gradient waits for it.
    asked = bound.agreements.ask_where_it_lies(_USED, flags, bound.clock.step)
    bound.agreements.send(bound.clock.step)
    return asked


def expose(bound: Bound, buckets: Sequence[GradientTransfers], asked: Answer | None) -> None:
    """The results are there: give a `.grad` to what some rank has used, zeros to what all have frozen.

    Args:
        bound: the algorithm on a model.
        buckets: with their results.
        asked: what `ask` has asked.
    """
    used: Sequence[Tensor] = [bucket.buffer.flags for bucket in buckets]
    if asked is not None:
        answer, sizes = asked.read(), [len(bucket.bucket.items) for bucket in buckets]
        used = torch.split(answer.floor(), sizes)
        for bucket, flags, trained in zip(buckets, used, torch.split(answer.frac(), sizes), strict=True):
            bucket.late.note_used(flags)
            bucket.settle_frozen(trained)
    _expose(buckets, used)
    _expose_residuals(bound, buckets)


def _expose_residuals(bound: Bound, buckets: Sequence[GradientTransfers]) -> None:
    """The same for what nobody has used, where a residual was sent, as no later message has it."""
    # A residual may lie in one shard alone, and shards are stepped together.
    is_sharded = bound.world.is_sharded
    sending = [one for one in buckets if (is_sharded or one.buffer.unused) and one.sends_residuals]
    if not sending:
        return
    sent = torch.cat([bucket.buffer.nonzero_flags() for bucket in sending])
    sent = bound.world.over_shards(sent, Label(bound.clock.step, _SENT), "max")
    _expose(sending, torch.split(sent, [len(bucket.bucket.items) for bucket in sending]))


def _expose(buckets: Sequence[GradientTransfers], used: Sequence[Tensor]) -> None:
    """Give a `.grad` where one lacks: only there a host waits for its GPU, and once for all buckets."""
    lacking = [(one, flags) for one, flags in zip(buckets, used, strict=True) if one.buffer.unused]
    read = iter(torch.cat([flags for _, flags in lacking]).tolist() if lacking else ())
    for bucket, flags in lacking:
        bucket.buffer.expose_used(list(islice(read, len(flags))))
