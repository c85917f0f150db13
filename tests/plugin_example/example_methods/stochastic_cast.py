"""A cast to bfloat16 whose rounding is drawn."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.plugin import (
    DENSE,
    Coding,
    Compressor,
    CompressorFacts,
    Context,
    Dense,
    Index,
    State,
    frozen,
)


@frozen
class stochastic_cast(Compressor):
    """Every entry as one of the two bfloat16 numbers around it, drawn so that the expectation is the entry.

    A float32's last 16 bits decide: `C(x) = (bits(x) + u) & ~0xffff`, u uniform in 0 to 65535.

    Args:
        seed: of the drawing.

    Example:
        >>> stochastic_cast().message_bytes(100, element_bytes=4)
        200

    Reference: Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015.
    """

    seed: Index = 0

    facts: ClassVar[CompressorFacts] = CompressorFacts(
        kinds=frozenset({DENSE}),
        rounds=1,
        scope="entry",
        linear=False,
        unbiased=True,
        clip=math.inf,
        max_norm=math.inf,
        memory="none",
        follows_results=False,
        follows_clock=False,
        keeps_finite=False,
        slots={},
        most_entries=math.inf,
    )

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        message = Dense(self._rounded(cx, tensor.float()).bfloat16())
        kept = torch.promote_types(tensor.dtype, torch.float32)
        sent = message.tensor.to(kept) if keep_sent else None
        parts = yield message
        result = torch.zeros_like(tensor, dtype=kept)
        for weight, part in parts:
            result += weight * part.tensor.to(kept)
        return result, sent

    def _rounded(self, cx: Context, values: Tensor) -> Tensor:
        generator = cx.generator(self.seed, values.device)
        noise = torch.empty_like(values, dtype=torch.int32).random_(1 << 16, generator=generator)
        rounded = ((values.view(torch.int32) + noise) & ~0xFFFF).view(torch.float32)
        return torch.where(values.isfinite(), rounded, values)

    def contraction(self, numel: int) -> float:
        return 2.0**-16

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return 2 * numel

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        return numel, 2
