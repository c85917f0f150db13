"""Compressors: how a tensor is encoded."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.roles import Coding, Compressor, Context, Parts, State
from relaxcomm.tensors.messages import DENSE, Dense, Message
from relaxcomm.tensors.precision import wide


def combine_dense(parts: Parts) -> Tensor:
    """The weighted sum of dense messages, at least float32; one part of weight 1 is returned as it is."""
    (weight, first), *others = parts
    if not others and weight == 1.0:
        return _dense(first)
    total = _dense(first).to(wide(_dense(first).dtype)) * weight
    for weight, message in others:
        total.add_(_dense(message), alpha=weight)
    return total


def _dense(message: Message) -> Tensor:
    assert isinstance(message, Dense), f"expected a dense message, got {message!r}"
    return message.tensor


@frozen
class identity(Compressor):
    """Every entry in full precision: `C(x) = x`.

    Example:
        >>> identity()
        identity()
    """

    kinds: ClassVar[frozenset[str]] = frozenset({DENSE})
    linear: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    keeps_finite: ClassVar[bool] = True

    def code(self, cx: Context, tensor: Tensor, state: State, *, keep_own: bool) -> Coding:
        parts = yield Dense(tensor.clone() if keep_own else tensor)  # an exchange may overwrite it
        return combine_dense(parts), tensor if keep_own else None

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return numel * element_bytes


@frozen
class cast(Compressor):
    """Every entry in another floating-point type: `C(x) = cast(x, dtype)`.

    The relative error of an entry in the type's normal range is at most 2^-11 for float16 and 2^-8
    for bfloat16. A value beyond float16's largest, 65504, becomes infinite, and the window is then
    not committed: use bfloat16 where gradients may be that large.

    Args:
        dtype: "float16" (2 bytes), "bfloat16" (2 bytes), "float32" (4 bytes) or "float64" (8 bytes).

    Example:
        >>> cast(dtype="bfloat16")
        cast(dtype='bfloat16')
    """

    dtype: Literal["float16", "bfloat16", "float32", "float64"]

    kinds: ClassVar[frozenset[str]] = frozenset({DENSE})
    linear: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    def code(self, cx: Context, tensor: Tensor, state: State, *, keep_own: bool) -> Coding:
        message = tensor.to(self._torch_dtype, copy=True)
        own = message.to(wide(tensor.dtype)) if keep_own else None
        parts = yield Dense(message)
        return combine_dense(parts).to(wide(tensor.dtype)), own

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return numel * self._torch_dtype.itemsize

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        return numel, self._torch_dtype.itemsize

    @property
    def _torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype
