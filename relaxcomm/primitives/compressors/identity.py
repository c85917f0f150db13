"""Full precision."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.compressors.weighted_sum import sum_dense
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.tensors.messages import DENSE, Dense


@frozen
class identity(Compressor):
    """Every entry in full precision: `C(x) = x`.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import identity
        >>> round_trip(identity(), [torch.tensor([0.1, 3.0])])
        [tensor([0.1000, 3.0000])]
    """

    facts: ClassVar[CompressorFacts] = CompressorFacts(
        kinds=frozenset({DENSE}),
        rounds=1,
        scope="entry",
        linear=True,
        unbiased=True,
        clip=math.inf,
        max_norm=math.inf,
        memory="none",
        follows_results=False,
        follows_clock=False,
        keeps_finite=True,
        slots={},
        most_entries=math.inf,
    )

    takes_complex = True

    def contraction(self, numel: int) -> float:
        return 0.0

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        parts = yield Dense(tensor.clone() if keep_sent else tensor)  # an exchange may overwrite it
        return (sum_dense(parts), tensor) if keep_sent else (sum_dense(parts, cx.out), None)

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        return numel, element_bytes

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return numel * element_bytes
