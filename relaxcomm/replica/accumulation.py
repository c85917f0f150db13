"""The gradients that are accumulated in a step, one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from relaxcomm.replica.gradient_buffer import check_dense
from relaxcomm.roles import MicroGradients
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.norms import squared_norm


class Accumulation:
    """Takes the difference of `.grad` before and after each backward of a step.

    Args:
        parameters: whose gradients are followed; none where nobody looks at them.
    """

    def __init__(self, parameters: Sequence[Item]) -> None:
        self._parameters = parameters
        self._arrived = False
        self.close()

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def close(self) -> None:
        """The step has ended."""
        self._count, self._samples, self._squares, self._norm = 0, 0, 0.0, 0.0
        self._before: list[torch.Tensor] = []
        self._expected: int | None = None
        self._are_known = True

    def arrive(self) -> None:
        """Parameters have got gradients in the backward that is under way."""
        self._arrived = True

    def expect(self, samples: int) -> None:
        """The next backward is of so many samples."""
        self._expected = samples

    def add(self) -> None:
        """A backward has ended, and nothing was exchanged yet; nothing happens if it reached no parameter."""
        if not (self._arrived and self._parameters):
            return
        self._arrived = False
        check_dense(self._parameters)
        seen = [(item.tensor, item.grad) for item in self._parameters]
        now = [torch.zeros_like(p) if grad is None else grad.detach().clone() for p, grad in seen]
        added = torch._foreach_sub(now, self._before) if self._before else now
        self._count += 1
        if self._expected is None:
            self._are_known = False
        else:
            self._samples += self._expected
            self._squares += squared_norm(added) / self._expected
            self._expected = None
        self._norm = squared_norm(now)
        self._before = now

    def seen(self, scale: float) -> MicroGradients:
        """What was accumulated since the step began, unscaled."""
        squares = self._samples * self._squares  # the gradient of a part is b_j / b of its own mean
        samples = self._samples if self._are_known else None
        return MicroGradients(self._count, samples, squares / scale**2, self._norm / scale**2)
