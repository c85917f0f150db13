"""Another floating-point type."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.weighted_sum import sum_dense
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.tensors.messages import Dense
from relaxcomm.tensors.precision import wide


@frozen
class cast(Compressor):
    """Every entry in another floating-point type: `C(x) = cast(x, dtype)`.

    The relative error of an entry in the type's normal range is at most 2^-11 for float16 and 2^-8
    for bfloat16. A value beyond float16's largest, 65504, becomes infinite, and the window is then
    not committed: use bfloat16 where gradients may be that large.

    Args:
        dtype: "float16" (2 bytes), "bfloat16" (2 bytes), "float32" (4 bytes) or "float64" (8 bytes).

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import cast
        >>> round_trip(cast(dtype="bfloat16"), [torch.tensor([0.5, 1.001, 3.3])])
        [tensor([0.5000, 1.0000, 3.2969])]
    """

    dtype: Literal["float16", "bfloat16", "float32", "float64"]

    facts: ClassVar[CompressorFacts] = replace(identity.facts, keeps_finite=False)

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        message = tensor.to(self._torch_dtype, copy=True)
        sent = message.to(wide(tensor.dtype), copy=True) if keep_sent else None  # an exchange sums up there
        parts = yield Dense(message)
        return sum_dense(parts).to(wide(tensor.dtype)), sent

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return numel * self._torch_dtype.itemsize

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        return numel, self._torch_dtype.itemsize

    @property
    def _torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype
