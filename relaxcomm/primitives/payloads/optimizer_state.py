"""What the optimizers keep, after their step."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.errors import CompositionError, UsageError
from relaxcomm.fields.frozen import frozen
from relaxcomm.fields.names import Names
from relaxcomm.primitives.payloads.parameters import parameters
from relaxcomm.roles import Context, Payload, PayloadFacts, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.precision import wide

_MADE_BY = {"exp_avg": "betas", "exp_avg_sq": "betas", "momentum_buffer": "momentum"}
"""The setting of torch's optimizers with which they keep each."""


@frozen
class optimizer_state(Payload):
    """What the optimizers keep under a name, such as Adam's moments, after their step.

    Of each parameter it is the first of `slots` that its optimizer keeps, exchanged in float32 at least.
    Where a worker has not trained a parameter yet, zeros are sent and nothing is written. The parameters
    themselves need a rule of their own.

    Args:
        slots: a name in the optimizer's state, such as "exp_avg", "exp_avg_sq" or "momentum_buffer"; or
            several, for optimizers that name the same thing differently.

    Raises: CompositionError, at attach, for an optimizer that keeps none of torch's names among them;
        UsageError, at the first exchange, for one that keeps none, or none of the parameter's shape.

    Example:
        >>> import torch
        >>> from relaxcomm import Algorithm, Rule, rehearse
        >>> from relaxcomm.primitives import all_reduce, gradients, optimizer_state
        >>> first = Rule(payload=optimizer_state(slots="exp_avg"), exchange=all_reduce())
        >>> rules = Rule(payload=gradients(), exchange=all_reduce()), first
        >>> run = rehearse(Algorithm(rules, name="both"), make_optimizer=torch.optim.Adam)
        >>> run.replicas_equal, run.bytes_sent / rehearse("bsp").bytes_sent > 1.5
        (True, True)

    Reference: Iacob et al., "DES-LOC: Desynced Low Communication Adaptive Optimizers for Training Foundation
        Models", arXiv 2505.22549.
    """

    slots: Names

    facts: ClassVar[PayloadFacts] = replace(parameters.facts, is_model=False, moves_model=False, wide=True)

    @property
    def words(self) -> str:
        return f"the optimizer's {' or '.join(self.slots)} of"

    def check_optimizer(self, groups: list[dict[str, object]]) -> None:
        if not set(self.slots) <= _MADE_BY.keys():
            return  # what other optimizers call theirs is seen at the first exchange
        for index, group in enumerate(groups):
            if not any(group.get(_MADE_BY[slot]) for slot in self.slots):
                raise CompositionError(
                    f"{self!r} exchanges what the optimizer's group {index} does not keep, as it has no "
                    f"{' or '.join(sorted({_MADE_BY[slot] for slot in self.slots}))}; use such as AdamW for "
                    '"exp_avg" and "exp_avg_sq", SGD with momentum or Muon for "momentum_buffer"'
                )

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        # Of one type on all ranks, whatever each has so far.
        flat = torch.zeros(bucket.numel, dtype=wide(bucket.dtype), device=bucket.device)
        kept = cx.optimizer_state(bucket, self.slots)
        for item, moment, view in zip(bucket.items, kept, bucket.views(flat), strict=True):
            if moment is None:
                continue
            if moment.shape != item.tensor.shape:
                raise UsageError(
                    f"{self!r}: the optimizer keeps {list(moment.shape)} entries under that name for "
                    f"{item.name}, whose shape is {list(item.tensor.shape)}; name one of each entry"
                )
            view.copy_(moment)
        return flat

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        for moment, view in zip(cx.optimizer_state(bucket, self.slots), bucket.views(value), strict=True):
            if moment is not None:
                moment.copy_(view)
