"""The drift guard: replicas that should be equal are compared now and then."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from relaxcomm.config import DriftGuard
from relaxcomm.errors import DriftError, DriftWarning
from relaxcomm.step import replicas
from relaxcomm.step.bound import Bound

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EXACT = 2**52  # a float64 holds every whole number up to twice this


class Drift:
    """Compares a checksum of each parameter's bits over the ranks.

    Args:
        bound: the algorithm on a model.
        guard: how often, and what is done; None for never.
    """

    def __init__(self, bound: Bound, guard: DriftGuard | None) -> None:
        self._bound, self._guard = bound, guard
        self._next = guard.every_steps if guard else 0

    def is_due(self) -> bool:
        """Whether it is time to compare, as soon as replicas should be equal."""
        return self._guard is not None and self._bound.clock.step + 1 >= self._next

    def check(self) -> None:
        """Compare replicas that should be equal; at the same place on all ranks.

        Raises: DriftError if the policy says so; NonFiniteError if all hold the same NaN or infinity.
        """
        assert self._guard is not None, "it is due only with a guard"
        step = self._bound.clock.step
        self._next = step + 1 + self._guard.every_steps
        differing = self._differing()
        if not differing:
            replicas.check(self._bound)  # gradients in full precision are not looked at for NaN
            if not self._bound.algorithm.lets_replicas_differ:
                self._bound.world.statistics.latest["replica_distance"] = 0.0
            return
        shown = ", ".join(differing[:3]) + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")
        text = (
            f"after step {step} the ranks hold different values of {shown}, which should be equal: "
            "something changed parameters on one rank alone, or ranks compute differently"
        )
        if self._guard.policy == "error":
            raise DriftError(
                f"{text}; with drift_guard: {{policy: average}} training would go on from the mean"
            )
        warnings.warn(text, DriftWarning, stacklevel=2)
        if self._guard.policy == "average":
            replicas.average(self._bound)
        elif self._bound.norms.enabled:
            replicas.means(self._bound)  # they measure how far this rank is from them

    def _differing(self) -> list[str]:
        parameters, step = self._bound.replica.parameters, self._bound.clock.step
        sums = torch.stack([_checksum(item.tensor) for item in parameters]).double().cpu()
        received = self._bound.agreements.decide("drift guard", torch.cat([sums, -sums]), step)
        largest, smallest = received[: len(sums)], -received[len(sums) :]
        names = [item.name for item in parameters]
        return [name for name, same in zip(names, (largest == smallest).tolist(), strict=True) if not same]


def _checksum(parameter: Tensor) -> Tensor:
    bits = parameter.detach().contiguous().view(-1).view(_INTEGERS[parameter.element_size()])
    return bits.sum(dtype=torch.int64) % _EXACT
