"""Entries chosen at random, the same on all ranks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch

from relaxcomm.fields.frozen import Index, frozen
from relaxcomm.fields.schedules import Density, largest, least, value_at
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.sparsifier import num_kept
from relaxcomm.primitives.compressors.weighted_sum import sum_dense
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import finite_flags, is_finite
from relaxcomm.tensors.host_copies import on_device
from relaxcomm.tensors.messages import SHARED_SUPPORT, SharedSupport

UNIT = "unit"
"""The slot that holds the bucket's index, so that equal buckets draw differently."""

DRAWN_FACTS = replace(
    identity.facts,
    kinds=frozenset({SHARED_SUPPORT}),
    scope="bucket",
    follows_clock=True,
    keeps_finite=False,
    slots={UNIT: "equal"},
)
"""The facts of what all ranks draw alike, without bias, in each bucket."""


@frozen
class random_k(Compressor):
    """`k = max(floor(density d), 1)` entries drawn anew in each exchange from a seed that all ranks share.

    No indices are sent, and the messages can be all-reduced. `E ||C(x) - x||^2 = (1 - k / d) ||x||^2`
    as it is; scaled by `d / k` it is unbiased, with `(d / k - 1) ||x||^2`.

    Args:
        density: fraction of the entries sent, in (0, 1], or a schedule.
        scaled: multiply by `d / k`, for use without `error_feedback`.
        seed: of the drawing; the same on all ranks.
        scope: whether k is counted over the whole "model" (what the rule covers; apart for each dtype, and
            where other rules cover a part of it) or over each "bucket".

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import random_k
        >>> x = torch.arange(200.0)
        >>> [arrived.nonzero().flatten().tolist() for arrived in round_trip(random_k(density=0.01), [x, x])]
        [[112, 153], [55, 176]]

    Reference: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
    """

    density: Density
    scaled: bool = False
    seed: Index = 0
    scope: Literal["model", "bucket"] = "model"

    @cached_property
    def facts(self) -> CompressorFacts:
        return replace(DRAWN_FACTS, scope=self.scope, unbiased=self.scaled)

    def contraction(self, numel: int) -> float | None:
        if self.scaled:
            return None
        return 1 - num_kept(least(self.density), numel) / numel if numel else 0.0

    def init(self, bucket: Bucket) -> Mapping[str, torch.Tensor]:
        return {UNIT: torch.tensor(bucket.index)}

    def encode_decode(self, cx: Context, tensor: torch.Tensor, state: State, *, keep_sent: bool) -> Coding:
        numel = tensor.numel()
        k = num_kept(value_at(self.density, cx.step - cx.start), numel)
        # Drawn on the CPU, so that ranks with other devices draw the same.
        generator = torch.Generator().manual_seed(shared_seed(self.seed, cx.step, int(state[UNIT])))
        indices = on_device(_drawn(numel, k, generator), tensor.device)
        scale = numel / k if self.scaled and k else 1.0
        values = tensor[indices] * scale
        # Never hidden: what is not finite reaches all ranks.
        if tensor.device.type == "cuda":  # without waiting
            values = torch.where(finite_flags([tensor]), values, math.nan)
        elif not is_finite(tensor):
            values.fill_(math.nan)
        sent = _at(indices, values, numel) if keep_sent else None
        parts = yield SharedSupport(values)
        return _at(indices, sum_dense(parts), numel), sent

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return num_kept(largest(self.density), numel) * element_bytes

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        return num_kept(largest(self.density), numel), element_bytes


def shared_seed(seed: int, step: int, unit: int) -> int:
    """What all ranks draw from in a step for a bucket."""
    numbers = f"{seed} {step} {unit}".encode()
    return int.from_bytes(hashlib.blake2b(numbers, digest_size=7).digest(), "little")


def _at(indices: torch.Tensor, values: torch.Tensor, numel: int) -> torch.Tensor:
    """A tensor of zeros but for these entries."""
    return values.new_zeros(numel).index_copy_(0, indices, values)


def _drawn(numel: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """k different numbers below `numel`."""
    if 4 * k > numel:
        return torch.randperm(numel, generator=generator)[:k]
    found = torch.empty(0, dtype=torch.int64)
    while found.numel() < k:  # far fewer than a quarter are drawn twice, so once or twice is enough
        more = torch.randint(numel, (k + k // 4 + 8,), generator=generator)
        found = torch.unique(torch.cat([found, more]))
    return found[torch.randperm(found.numel(), generator=generator)[:k]]
