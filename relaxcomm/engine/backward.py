"""The gradient rules: exchanged bucket by bucket while backward goes on."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from relaxcomm.engine.finite import is_finite, non_finite_error
from relaxcomm.engine.flights import Pipeline
from relaxcomm.engine.gradients import GradientBuffer
from relaxcomm.engine.late import LateGradients
from relaxcomm.engine.program import GradientExchange
from relaxcomm.engine.run import Run
from relaxcomm.errors import UsageError


class Backward:
    """Follows one backward at a time: which gradients are there, which buckets are on their way.

    Buckets are launched in index order, each as soon as it and all before it are complete. The
    first backward exchanges nothing until its end: it shows in which order gradients become ready,
    and how often each arrives (more than once under reentrant checkpointing), and the layout
    follows rank 0's order.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.begun = False
        self._names = [item.name for item in run.parameters]
        self._expected = [0] * len(self._names)
        self._left: list[int] = []
        self._bucket_of: list[int] = []
        self._missing: list[int] = []
        self._order: list[int] = []
        self._next = 0
        self._pipeline = Pipeline(run.transport, run.statistics)
        self._exchanges: list[GradientExchange] = []

    @property
    def has_rules(self) -> bool:
        """Whether any rule exchanges gradients."""
        return bool(self.run.algorithm.at("backward"))
