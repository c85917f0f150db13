"""Compressors with which exchanges are tried, one for each kind of message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.compressors.adaptive_top_k import adaptive_top_k
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.quantize import quantize
from relaxcomm.primitives.compressors.random_k import random_k
from relaxcomm.primitives.compressors.sign import sign
from relaxcomm.primitives.compressors.top_k import top_k
from relaxcomm.primitives.compressors.weighted_sum import sum_dense
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.tensors.messages import (
    DENSE,
    MAXIMUM,
    MIXED,
    QUANTIZED,
    SHARED_SUPPORT,
    SIGNS,
    SPARSE,
    Dense,
    Maximum,
)


@frozen
class largest(Compressor):
    """The largest of all workers' entries."""

    facts: ClassVar[CompressorFacts] = replace(identity.facts, kinds=frozenset({MAXIMUM}), linear=False)

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        return Maximum.of((yield Maximum(tensor.clone()))), tensor

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return numel * element_bytes


@frozen
class in_two_rounds(Compressor):
    """The mean, and then what it leaves to the mean, which is nothing."""

    facts: ClassVar[CompressorFacts] = replace(identity.facts, rounds=2, follows_results=True)

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        mean = sum_dense((yield Dense(tensor.clone())))
        rest = sum_dense((yield Dense(mean.clone())))
        return (mean + rest) / 2, tensor if keep_sent else None

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return 2 * numel * element_bytes


CODERS: Mapping[str, Compressor] = {  # that lose nothing, or little
    DENSE: identity(),
    SPARSE: top_k(density=1.0),
    SHARED_SUPPORT: random_k(density=1.0),
    QUANTIZED: quantize(bits=8),
    SIGNS: sign(),
    MIXED: adaptive_top_k(gain=1.0, most=1.0, least=1.0),
    MAXIMUM: largest(),
}
