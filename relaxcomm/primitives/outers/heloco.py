"""Momentum that looks ahead, and that late deltas are held against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Fraction, Rate, Share, Threshold, frozen
from relaxcomm.primitives.outers.sgd import sgd
from relaxcomm.roles import Context, Outer, OuterFacts, State
from relaxcomm.tensors.buckets import Bucket

_MOMENTUM = "momentum"


@frozen
class heloco(Outer):
    """Momentum against which each tensor's delta is corrected, and parameters that look ahead along it.

    Of each tensor, with `c = cos(delta, m)` and `conf = ||delta|| / (||delta|| + confidence ||m||)`:

    - `c >= alignment`: `d = delta`;
    - `c < 0`: `d = delta - b c ||delta|| m / ||m||` with `b = min(-shrink c conf, most_shrunk)`;
    - else: `d` is as long as delta, and has the direction of `(1 - l) delta / ||delta|| + l m / ||m||` with
      `l = min(turn (1 - c) conf, 1)`.

    Then `g = weight d`, `m <- momentum m + (1 - momentum) g`, `x <- x - lr (g + momentum m)`; workers get
    `p = x - lr momentum m`. Where delta or m is 0, `d = delta`.

    Args:
        lr: outer learning rate.
        momentum: in [0, 1).
        weight: of each delta; 1 / N for N workers unless given, since by more like workers overshoot.
        alignment: the cosine from which on a delta is taken as it is, in (0, 1].
        shrink: how strongly what is against the momentum is taken back.
        most_shrunk: the largest share that is, in (0, 1].
        turn: how strongly a delta is turned towards the momentum.
        confidence: how long the momentum counts beside the delta; the more, the less is corrected.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, deltas, heloco
        >>> for shrink in (0.0, 0.5):  # the second delta is against the first
        ...     outer = heloco(lr=0.5, momentum=0.5, weight=1.0, shrink=shrink)
        ...     rule = Rule(payload=deltas(), exchange=all_reduce(), outer=outer)
        ...     print(trajectory(rule, [[3.0, 3.0], [-3.0, -3.0]]))
        tensor([[2.2500, 2.2500],
                [0.0000, 0.0000]])
        tensor([[2.2500, 2.2500],
                [0.4500, 0.4500]])

    Reference: Asif et al., "HeLoCo: Efficient asynchronous low-communication training under data and device
        heterogeneity", arXiv 2606.00271.
    """

    lr: Rate
    momentum: Fraction
    weight: Rate | None = None
    alignment: Share = 0.2
    shrink: Threshold = 0.5
    most_shrunk: Share = 0.5
    turn: Threshold = 1.0
    confidence: Threshold = 3.0

    facts: ClassVar[OuterFacts] = sgd.facts

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {_MOMENTUM: bucket.zeros()}

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        before = state[_MOMENTUM]
        weight = 1 / cx.membership.world_size if self.weight is None else self.weight
        taken = result.to(before.dtype, copy=True)
        for delta, momentum in zip(bucket.views(taken), bucket.views(before), strict=True):
            self._correct(delta, momentum)
        taken.mul_(weight)
        after = state[_MOMENTUM] = torch.lerp(taken, before, self.momentum)
        # What is kept is p, so that the step is from one look ahead to the next.
        step = taken.add_(after, alpha=2 * self.momentum).sub_(before, alpha=self.momentum)
        assert base is not None, "legality lets only payloads with a base through"
        return torch.sub(base, step, alpha=self.lr)

    def _correct(self, delta: Tensor, momentum: Tensor) -> None:
        """Turn a tensor's delta in place; chosen on its device, so that the host waits for nothing."""
        length, reference = torch.linalg.vector_norm(delta), torch.linalg.vector_norm(momentum)
        both = length * reference
        cosine = torch.where(both > 0, (delta * momentum).sum() / both, 1.0)
        conf = length / (length + self.confidence * reference)
        back = (-self.shrink * cosine * conf).clamp(max=self.most_shrunk)
        towards = (self.turn * (1 - cosine) * conf).clamp(max=1.0)
        rest = 1 - towards
        mixed = (rest.square() + towards.square() + 2 * rest * towards * cosine).sqrt()
        keeps, opposes = cosine >= self.alignment, cosine < 0
        own = torch.where(keeps | opposes, 1.0, rest / mixed)
        along = torch.where(opposes, -back * cosine, towards / mixed) * (length / reference)
        delta.mul_(own).add_(torch.where(keeps, 0.0, along) * momentum)
