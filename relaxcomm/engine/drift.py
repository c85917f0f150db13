"""The drift guard: replicas that should be equal are compared now and then."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relaxcomm.config import DriftGuard
from relaxcomm.engine import replicas
from relaxcomm.errors import DriftError, DriftWarning
from relaxcomm.network.operations import Agree, Label

if TYPE_CHECKING:
    from relaxcomm.engine.run import Run

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EXACT = 2**52  # a float64 holds every whole number up to twice this


class Drift:
    """Compares a checksum of each parameter's bits over the ranks.

    Args:
        run: the run.
        guard: how often, and what is done; None for never.
    """

    def __init__(self, run: Run, guard: DriftGuard | None) -> None:
        self._run, self._guard = run, guard
        self._next = guard.every_steps if guard else 0

    def check(self, should_be_equal: Callable[[], bool]) -> None:
        """Compare, if it is time and replicas should be equal now; at the same place on all ranks.

        Raises: DriftError if the policy says so.
        """
        if self._guard is None or self._run.step + 1 < self._next or not should_be_equal():
            return
        self._next = self._run.step + 1 + self._guard.every_steps
        differing = self._differing()
        if not differing:
            if not self._run.algorithm.lets_replicas_differ:
                self._run.statistics.latest["replica_distance"] = 0.0
            return
        shown = ", ".join(differing[:3]) + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")
        text = (
            f"after step {self._run.step} the ranks hold different values of {shown}, which should be equal: "
            "something changed parameters on one rank alone, or ranks compute differently"
        )
        if self._guard.policy == "error":
            raise DriftError(
                f"{text}; with drift_guard: {{policy: average}} training would go on from the mean"
            )
        warnings.warn(text, DriftWarning, stacklevel=2)
        if self._guard.policy == "average":
            replicas.average(self._run)
        elif self._run.samples.enabled:
            replicas.means(self._run)  # they measure how far this rank is from them

    def _differing(self) -> list[str]:
        sums = torch.stack([_checksum(item.tensor) for item in self._run.parameters]).double().cpu()
        with self._run.statistics.waiting():
            received = self._run.transport.issue(
                Agree(torch.cat([sums, -sums]), "max"), Label(self._run.step, "drift guard")
            ).wait()
        assert isinstance(received, Tensor)
        largest, smallest = received[: len(sums)], -received[len(sums) :]
        names = [item.name for item in self._run.parameters]
        return [name for name, same in zip(names, (largest == smallest).tolist(), strict=True) if not same]


def _checksum(parameter: Tensor) -> Tensor:
    bits = parameter.detach().contiguous().view(-1).view(_INTEGERS[parameter.element_size()])
    return bits.sum(dtype=torch.int64) % _EXACT
