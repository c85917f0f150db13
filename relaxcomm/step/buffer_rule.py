"""How a model's buffers are averaged beside a rule that moves its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.composition.rule import Rule
from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.payloads.client_deltas import WEIGHT, client_deltas
from relaxcomm.primitives.payloads.parameters import parameters
from relaxcomm.primitives.triggers.every import every
from relaxcomm.primitives.triggers.every_step import every_step
from relaxcomm.roles import Context, PayloadFacts, State
from relaxcomm.tensors.buckets import Bucket


def buffer_rule(rule: Rule) -> Rule:
    """How the buffers that go with a rule are averaged: in full precision, over the same exchange."""
    # When it runs is decided by the rule that it goes with.
    trigger = every(steps=max(1, rule.delay)) if isinstance(rule.delay, int) else every_step()
    payload = weighted_buffers() if isinstance(rule.payload, client_deltas) else parameters()
    return Rule(payload=payload, exchange=rule.exchange.without_memory, trigger=trigger, delay=rule.delay)


@frozen
class weighted_buffers(parameters):
    """Buffers, by the weight of the rule that they go with; 0 where a worker plays no client in a round.

    They travel as float64, so that those that are equal on all workers stay what they are.
    """

    facts: ClassVar[PayloadFacts] = replace(parameters.facts, extra_entries=1, slots={WEIGHT: "sum"})

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {WEIGHT: torch.zeros(1, dtype=torch.float64, device=bucket.device)}

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        weight = state[WEIGHT].to(out.device, torch.float64)
        return torch.cat([bucket.gather(out) * weight, weight])

    def finalize(self, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
        return (result[:-1] / result[-1]).to(bucket.dtype)
