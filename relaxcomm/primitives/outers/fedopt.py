"""Adaptive outer optimizers (FedOpt): per-entry step sizes on combined deltas."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Fraction, Rate, frozen
from relaxcomm.primitives.outers.sgd import sgd
from relaxcomm.roles import Context, Outer, OuterFacts, State
from relaxcomm.tensors.buckets import Bucket


class _Adaptive(Outer):
    """`m <- momentum m + (1 - momentum) delta`, `p = anchor - lr m / (sqrt(v) + tau)`."""

    lr: float
    momentum: float
    tau: float

    facts: ClassVar[OuterFacts] = replace(sgd.facts, slots={"momentum": "equal", "squares": "equal"})

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {"momentum": bucket.zeros(), "squares": torch.full_like(bucket.zeros(), self.tau**2)}

    @abstractmethod
    def squares(self, before: Tensor, squared: Tensor) -> Tensor:
        """The new v."""

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        assert base is not None, "legality lets only payloads with a base through"
        moving = state["momentum"] = torch.lerp(result, state["momentum"], self.momentum)
        state["squares"] = self.squares(state["squares"], result.square())
        return torch.addcdiv(base, moving, state["squares"].sqrt() + self.tau, value=-self.lr)


@frozen
class adam(_Adaptive):
    """Adam on deltas: `v <- second_momentum v + (1 - second_momentum) delta^2`.

    `m <- momentum m + (1 - momentum) delta`, `p = anchor - lr m / (sqrt(v) + tau)`, with `v = tau^2` at first
    and no bias correction.

    Args:
        lr: outer learning rate, positive.
        momentum: of m, in [0, 1).
        second_momentum: of v, in [0, 1).
        tau: degree of adaptivity, positive, in the units of a delta.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import adam, all_reduce, deltas
        >>> rule = Rule(payload=deltas(), exchange=all_reduce(), outer=adam(lr=0.01))
        >>> trajectory(rule, [[1.0, 3.0]] * 2)
        tensor([[0.0100, 0.0100],
                [0.0234, 0.0234]])

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    """

    lr: Rate
    momentum: Fraction = 0.9
    second_momentum: Fraction = 0.99
    tau: Rate = 1e-3

    facts: ClassVar[OuterFacts] = _Adaptive.facts

    def squares(self, before: Tensor, squared: Tensor) -> Tensor:
        return torch.lerp(squared, before, self.second_momentum)


@frozen
class yogi(_Adaptive):
    """Yogi on deltas: `v <- v - (1 - second_momentum) delta^2 sign(v - delta^2)`, otherwise as `adam`.

    Args:
        lr: outer learning rate, positive.
        momentum: of m, in [0, 1).
        second_momentum: of v, in [0, 1).
        tau: degree of adaptivity, positive, in the units of a delta.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, deltas, yogi
        >>> rule = Rule(payload=deltas(), exchange=all_reduce(), outer=yogi(lr=0.01))
        >>> trajectory(rule, [[1.0, 3.0]] * 2)
        tensor([[0.0100, 0.0100],
                [0.0233, 0.0233]])

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    """

    lr: Rate
    momentum: Fraction = 0.9
    second_momentum: Fraction = 0.99
    tau: Rate = 1e-3

    facts: ClassVar[OuterFacts] = _Adaptive.facts

    def squares(self, before: Tensor, squared: Tensor) -> Tensor:
        return before - (1 - self.second_momentum) * squared * torch.sign(before - squared)


@frozen
class adagrad(_Adaptive):
    """Adagrad on deltas: `v <- v + delta^2`, otherwise as `adam`.

    Args:
        lr: outer learning rate, positive.
        momentum: of m, in [0, 1).
        tau: degree of adaptivity, positive, in the units of a delta.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import adagrad, all_reduce, deltas
        >>> rule = Rule(payload=deltas(), exchange=all_reduce(), outer=adagrad(lr=0.01))
        >>> trajectory(rule, [[1.0, 3.0]] * 3)
        tensor([[0.0100, 0.0100],
                [0.0171, 0.0171],
                [0.0228, 0.0228]])

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    """

    lr: Rate
    momentum: Fraction = 0.0
    tau: Rate = 1e-3

    facts: ClassVar[OuterFacts] = _Adaptive.facts

    def squares(self, before: Tensor, squared: Tensor) -> Tensor:
        return before + squared
