"""Whether a backward's gradients are finite: what the ranks decide together, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from relaxcomm.errors import NonFiniteError
from relaxcomm.step.agreements import Answer
from relaxcomm.step.bound import Bound
from relaxcomm.step.finite import GRADIENT, NOT_FINITE, non_finite_error, spoilt
from relaxcomm.step.gradient_transfers import GradientTransfers
from relaxcomm.step.world import flag_of
from relaxcomm.tensors.finiteness import all_finite, is_finite

Buckets: TypeAlias = Sequence[GradientTransfers]


class GradientFiniteness:
    """Looks at the results of buckets, and keeps state or drops it, everywhere alike."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._on_gpu = bound.replica.device.type == "cuda"

    def ask(self, buckets: Buckets) -> Answer | None:
        """Ask whether results are finite on every rank, where ranks have got different ones, or hold
        different shards.
        """
        differ = any(bucket.ran_apart for bucket in buckets)
        if not (differ or (self._bound.world.is_sharded and any(one.is_guarded for one in buckets))):
            return None
        is_bad = ~_are_finite(buckets) if self._on_gpu else any(one.bad_results() for one in buckets)
        return self._bound.agreements.ask_where_it_lies(NOT_FINITE, flag_of(is_bad), self._bound.clock.step)

    def commit(self, buckets: Buckets, others: Answer | None) -> None:
        """Keep state only if all is finite; without a scaler a gradient that is not is an error.

        Args:
            buckets: with their results.
            others: what `ask` has asked.

        Raises: NonFiniteError; on a GPU it is raised later, and this gradient is zero.
        """
        if self._on_gpu:
            self._commit_on_gpu(buckets, others)
            return
        bad = [(bucket, result) for bucket in buckets for result in bucket.bad_results()]
        good = not bad if others is None else not others.read().item()
        for bucket in buckets:
            bucket.commit(good)
        if not good and self._bound.replica.scaler is None:
            raise self._error(buckets, bad)

    def _commit_on_gpu(self, buckets: Buckets, others: Answer | None) -> None:
        guarded = [bucket for bucket in buckets if bucket.guarded_results()]
        good: bool | Tensor = True
        if others is not None:
            good = (others.read() == 0).all()
        elif guarded:
            good = _are_finite(guarded)
        for bucket in buckets:
            bucket.commit(good)
        if isinstance(good, Tensor) and self._bound.replica.scaler is None:
            for bucket in guarded:
                bucket.buffer.main.masked_fill_(~good, 0)
            put_in = [one for bucket in guarded for one in bucket.put_in]
            self._bound.flags.add(good, self._bound.clock.step, put_in)

    def check_late(self, buckets: Buckets, drained: Buckets) -> None:
        """Look at late gradients, which are in `.grad` now; a scaler has those that are not finite left out.

        Args:
            buckets: all.
            drained: those among them with late gradients.

        Raises: NonFiniteError on all ranks, without a scaler.
        """
        bad = [(one, one.buffer.main) for one in drained if not is_finite(one.buffer.main)]
        is_bad = bool(bad)
        same = all(rule.exchange.facts.same_result for _, rule in self._bound.algorithm.at("backward"))
        if self._bound.world.is_sharded or not same:
            is_bad = self._bound.agreements.any(is_bad, NOT_FINITE, self._bound.common_step)
        if is_bad:
            if self._bound.replica.scaler is None:
                raise self._error(buckets, bad)
            self._bound.replica.clear_gradients()

    def _error(self, buckets: Buckets, bad: Sequence[tuple[GradientTransfers, Tensor]]) -> NonFiniteError:
        """An error that says where NaN or infinity arose; the ranks ask each other."""
        came = [name for bucket, result in bad for name in spoilt(bucket.bucket, result, GRADIENT)]
        put_in = [name for bucket in buckets for name in bucket.not_finite]
        put_in += [name for bucket in buckets for one in bucket.put_in for name in one.bad()]
        return non_finite_error(self._bound.world, put_in, came, self._bound.clock.step)


def _are_finite(buckets: Buckets) -> Tensor:
    """Whether all that must be finite is, a scalar on the device."""
    results = [result for bucket in buckets for result in bucket.guarded_results()]
    return all_finite(results or [torch.empty(0, device=buckets[0].bucket.device)])
