"""What a round's clients have moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.data.clients import CLIENT, ROUND, ROUND_GIVEN_UP, ROUND_LEFT
from relaxcomm.errors import UsageError
from relaxcomm.fields.frozen import Threshold, frozen
from relaxcomm.primitives.payloads.deltas import ANCHOR, deltas
from relaxcomm.primitives.payloads.parameters import parameters
from relaxcomm.roles import Context, Payload, PayloadFacts, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.precision import wide

_WEIGHT = "weight"


@frozen
class client_deltas(Payload):
    """What a round's clients have moved, by their samples: `sum_k n_k (anchor - w_k) / sum_k n_k`.

    Each client starts from the anchor; when it ends, its move is added up and the next one starts.
    FedProx's term `proximal (w - anchor)` is added to its gradients just before each optimizer step.

    Args:
        proximal: mu, 0 or more.

    Example:
        >>> from relaxcomm import Algorithm, Rule, rehearse
        >>> from relaxcomm.primitives import all_reduce, client_deltas, every_round
        >>> rule = Rule(trigger=every_round(), payload=client_deltas(proximal=0.1), exchange=all_reduce())
        >>> run = rehearse(Algorithm((rule,), name="fedprox"), epochs=2)
        >>> run.exchanges, run.replicas_equal
        (2, True)

    Reference: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    """

    proximal: Threshold = 0.0

    facts: ClassVar[PayloadFacts] = replace(
        deltas().facts,
        extra_entries=1,
        wide=True,
        event=ROUND,
        hears=frozenset({CLIENT, ROUND_LEFT, ROUND_GIVEN_UP}),
        slots={ANCHOR: "equal", "moved": "sum", _WEIGHT: "sum"},
    )

    def for_buffers(self) -> Payload:
        return _weighted_buffers()

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        weight = torch.zeros(1, dtype=wide(bucket.dtype), device=bucket.device)
        return {ANCHOR: bucket.copy(), "moved": bucket.zeros(), _WEIGHT: weight}

    def before_step(self, cx: Context, bucket: Bucket, state: State) -> None:
        if not self.proximal:
            return
        pull = bucket.subtract_from(state[ANCHOR], bucket.temporary()).mul_(-self.proximal)
        if cx.gradient_scale is not None:
            pull.mul_(cx.gradient_scale)
        for item, view in zip(bucket.items, bucket.views(pull), strict=True):
            if (gradient := item.grad) is not None:
                gradient.add_(view)

    def event(
        self, cx: Context, bucket: Bucket, state: State, event: str, facts: Mapping[str, float]
    ) -> None:
        if event == CLIENT:
            samples = float(facts["samples"])
            moved = self._moved(bucket, state)
            state["moved"] = torch.add(state["moved"], moved, alpha=samples)
            state[_WEIGHT] = state[_WEIGHT] + samples
            bucket.scatter(state[ANCHOR])
        elif event == ROUND_LEFT and (state[_WEIGHT].any() or self._moved(bucket, state).any()):
            raise UsageError(
                "a round was left before its end, and what its clients have moved would count in the next "
                "one; read each round to its end, and save inside the loop over its batches to go on there"
            )
        elif event == ROUND_GIVEN_UP:
            self.write(cx, bucket, state, state[ANCHOR], None)

    def _moved(self, bucket: Bucket, state: State) -> Tensor:
        """What the client that trains now has moved."""
        return bucket.subtract_from(state[ANCHOR], bucket.temporary())

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        # As wide as they are kept: samples of many clients are more than float16 holds.
        return torch.cat([state["moved"], state[_WEIGHT]])

    def finalize(self, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
        if not result[-1].real > 0:
            raise UsageError(
                "a round has ended in which no client has trained: none that was sampled has any samples; "
                "sample a larger fraction, or divide the data among fewer clients"
            )
        return result[:-1] / result[-1]

    def base(self, cx: Context, bucket: Bucket, state: State) -> Tensor | None:
        return state[ANCHOR]

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        state[ANCHOR], state["moved"] = value, bucket.zeros()
        state[_WEIGHT] = torch.zeros_like(state[_WEIGHT])
        bucket.scatter(value)


@frozen
class _weighted_buffers(parameters):
    """Buffers, by the weight of the rule that they go with; 0 where a worker plays no client in a round.

    They travel as float64, so that those that are equal on all workers stay what they are.
    """

    facts: ClassVar[PayloadFacts] = replace(parameters.facts, extra_entries=1, slots={_WEIGHT: "sum"})

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {_WEIGHT: torch.zeros(1, dtype=torch.float64, device=bucket.device)}

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        weight = state[_WEIGHT].to(out.device)
        return torch.cat([bucket.gather(out) * weight, weight])

    def finalize(self, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
        return (result[:-1] / result[-1]).to(bucket.dtype)
