"""Whether a backward's gradients are finite: what the ranks decide together, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from relaxcomm.errors import NonFiniteError
from relaxcomm.step.agreements import Answer
from relaxcomm.step.bound import Bound
from relaxcomm.step.finite import GRADIENT, DeferredCheck, non_finite_error, spoilt
from relaxcomm.step.gradient_transfers import GradientTransfers

Buckets: TypeAlias = Sequence[GradientTransfers]


class GradientFiniteness:
    """Looks at the results of buckets, and keeps state or drops it, everywhere alike.

    Args:
        bound: the algorithm on a model.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._deferred = DeferredCheck()

    def ask(self, buckets: Buckets) -> Answer | None:
        """Ask whether results are finite on every rank, where ranks have got different ones."""
        if not any(bucket.ran_apart for bucket in buckets):
            return None
        bad = any(bucket.bad_results() for bucket in buckets)
        return self._bound.agreements.ask("not finite", torch.tensor([float(bad)]))

    def commit(self, buckets: Buckets, others: Answer | None) -> None:
        """Keep state only if all is finite; without a scaler a gradient that is not is an error.

        Args:
            buckets: with their results.
            others: what `ask` has asked.

        Raises: NonFiniteError; on a GPU it is `raise_if_bad` that does.
        """
        results = [result for bucket in buckets for result in bucket.guarded_results()]
        good: bool | Tensor = True
        bad: list[tuple[GradientTransfers, Tensor]] = []
        is_error = self._bound.replica.scaler is None
        if results and results[0].device.type == "cpu":
            bad = [(bucket, result) for bucket in buckets for result in bucket.bad_results()]
            good = not bad
        elif results:
            good = self._deferred.look(results, step=self._bound.clock.step, is_error=is_error)
        if others is not None:
            good = not others.read().item()
        for bucket in buckets:
            bucket.commit(good)
        if good is False and is_error:
            raise self.error(buckets, bad)

    def raise_if_bad(self) -> None:
        """Raise NonFiniteError on all ranks if the last step's gradients were not finite, on a GPU."""
        self._deferred.raise_if_bad()

    def error(self, buckets: Buckets, bad: Sequence[tuple[GradientTransfers, Tensor]]) -> NonFiniteError:
        """An error that says where NaN or infinity arose; the ranks ask each other."""
        came = [name for bucket, result in bad for name in spoilt(bucket.bucket, result, GRADIENT)]
        put_in = [name for bucket in buckets for name in bucket.not_finite]
        return non_finite_error(self._bound.world, put_in, came, self._bound.clock.step)
