"""The drift guard: replicas that should be equal are compared now and then."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

from relaxcomm.config import DriftGuard
from relaxcomm.errors import DriftError, DriftWarning, some_of
from relaxcomm.step import model_means, replicas
from relaxcomm.step.bound import Bound
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item


class Drift:
    """Compares a checksum of each parameter's bits over the ranks.

    Args:
        bound: the algorithm on a model.
        guard: how often, and what is done.
    """

    def __init__(self, bound: Bound, guard: DriftGuard) -> None:
        self._bound, self._guard = bound, guard
        self._next: dict[str, int] = {}  # by parameter, the first step after which it is compared again
        self._earliest = guard.every_steps

    def is_due(self) -> bool:
        """Whether it is time to compare anything, as soon as it should be equal."""
        return self._bound.clock.step + 1 >= self._earliest

    def check(self, equal: Sequence[Bucket]) -> None:
        """Compare what is due; at the same place on all ranks.

        Args:
            equal: what should be equal on all ranks now.

        Raises: DriftError if the policy says so; NonFiniteError if all hold the same NaN or infinity.
        """
        step, due = self._bound.clock.step, self._due({name for bucket in equal for name in bucket.names})
        if not due:
            return
        differing = model_means.differing(self._bound, due, "drift guard")
        if not differing:
            replicas.check(self._bound, due)  # gradients in full precision are not looked at for NaN
            if not self._bound.algorithm.lets_replicas_differ:
                self._bound.world.statistics.latest["replica_distance"] = 0.0
            return
        text = (
            f"after step {step} the ranks hold different values of {some_of(differing)}, which should be "
            "equal: something changed parameters on one rank alone, or ranks compute differently"
        )
        if self._guard.policy == "error":
            raise DriftError(
                f"{text}; with drift_guard: {{policy: average}} training would go on from the mean"
            )
        warnings.warn(text, DriftWarning, stacklevel=2)
        if self._guard.policy == "average":
            names = [item.name for item in self._bound.replica.parameters]
            replicas.equalise(self._bound, moments=self._bound.algorithm.kept_equal(names, step))
        elif self._bound.norms.enabled:
            model_means.means(self._bound)  # they measure how far this rank is from them

    def _due(self, equal: Collection[str]) -> list[Item]:
        """The parameters that are compared now, which come next after a while."""
        every, done = self._guard.every_steps, self._bound.clock.step + 1
        parameters = self._bound.replica.parameters
        due = [one for one in parameters if one.name in equal and self._next.get(one.name, every) <= done]
        self._next |= {one.name: done + every for one in due}
        self._earliest = min(self._next.get(one.name, every) for one in parameters)
        return due
