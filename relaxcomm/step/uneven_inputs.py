"""Uneven inputs: a rank that has no more batches shadows the others until they have none."""

from __future__ import annotations

from collections.abc import Callable

import torch

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import UsageError
from relaxcomm.step.backward import Backward
from relaxcomm.step.bound import Bound
from relaxcomm.step.parameter_exchange import ParameterExchange


def check_switches(*algorithms: Algorithm) -> None:
    """Raise UsageError for switches inside join() that ranks that have run out of data could not follow.

    Args:
        algorithms: from and to which they are, as far as that is known.
    """
    apart = [one.name for one in algorithms if not one.keeps_step]
    if apart:
        raise UsageError(
            f"a switch from or to {apart[0]} inside join(): its workers have no common step, so one that has "
            "run out of data could not follow; enter join() when the last phase has begun, or give all as "
            "many batches, as engine.loader does, and leave join() out"
        )


class UnevenInputs:
    """Inside join(), before every exchange and every switch, the ranks say whether they still train.

    Args:
        bound: the algorithm on a model.
        backward, parameters: what exchanges in a step.
    """

    def __init__(self, bound: Bound, backward: Backward, parameters: ParameterExchange) -> None:
        self._bound, self._backward, self._parameters = bound, backward, parameters
        self.are_uneven = False
        """Whether this rank is inside join()."""
        self._all_trained = -1  # the step in which all train, if they said so when asked last

    @property
    def active(self) -> bool:
        """Whether this rank is inside join(), where others that have run out of data follow its steps."""
        return self.are_uneven and self._bound.plan.keeps_step

    def check_left(self, called: str, instead: str = "") -> None:
        """Raise UsageError inside join(), before what ranks that have run out of data would not know of."""
        if self.are_uneven:
            raise UsageError(
                f"{called} inside join(): a rank that has run out of data could not follow; call it before "
                f"or after join(){instead}"
            )

    def check_first_backward(self) -> None:
        """Raise UsageError for another synchronising backward in a step, which shadows cannot foresee."""
        if self.active and self._backward.synchronised and self._backward.is_due():
            raise UsageError(
                "a second synchronising backward in one step inside join(): shadows cannot foresee it; "
                "accumulate under engine.no_sync()"
            )

    def take_part(self, is_due: Callable[[], bool]) -> None:
        """Say that this rank still trains, where an exchange is about to begin or a late result to land.

        Args:
            is_due: whether that is so; asked only inside join().
        """
        if self.active and is_due():
            self.agree(trains=True)

    def is_anything_ahead(self) -> bool:
        """Whether there will be something to take part in."""
        step = self._bound.clock.step
        is_late = bool(self._parameters.late) or any(True for _ in self._backward.late)
        return is_late or any(
            rule.active[1] is None or rule.active[1] > step for rule in self._bound.algorithm.rules
        )

    @property
    def all_train(self) -> bool:
        """Whether all ranks make this step, so that they may do something more together."""
        return not self.active or self._all_trained == self._bound.clock.step

    def agree(self, *, trains: bool) -> bool:
        """Whether any rank trains."""
        step = self._bound.clock.step
        told = torch.tensor([trains, not trains], dtype=torch.float32)
        some_train, some_do_not = self._bound.agreements.decide("join", told, step).tolist()
        self._all_trained = -1 if some_do_not else step
        return bool(some_train)
