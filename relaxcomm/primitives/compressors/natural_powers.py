"""Powers of two."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Index, frozen
from relaxcomm.primitives.compressors.uniform_quantizer import draws
from relaxcomm.roles import Coding, Compressor, Context, Parts, State
from relaxcomm.tensors.bit_packing import pack_codes, packed_bytes
from relaxcomm.tensors.messages import QUANTIZED, Powers
from relaxcomm.tensors.precision import wide

_MANTISSA_BITS = 23


@frozen
class natural(Compressor):
    """One of the two powers of two next to each entry, drawn so that the expectation is x: nine bits.

    `E ||C(x) - x||^2 <= ||x||^2 / 8`. Entries below 2^-126 become 0 or 2^-126, those above the type's largest
    power of two that power. What is not finite becomes infinite. Entries of float64 are taken as float32.

    Args:
        seed: of the drawing.

    Example:
        >>> natural()
        natural()

    Reference: Horváth et al., "Natural Compression for Distributed Deep Learning", MSML 2022.
    """

    seed: Index = 0

    kinds: ClassVar[frozenset[str]] = frozenset({QUANTIZED})

    def contraction(self, numel: int) -> float | None:
        return 1 / 8

    def code(self, cx: Context, tensor: Tensor, state: State, *, keep_own: bool) -> Coding:
        bits = tensor.float().view(torch.int32)
        mantissa = (1 << _MANTISSA_BITS) - 1
        size = bits & 0x7FFFFFFF
        noise = torch.randint(
            0,
            mantissa + 1,
            size.shape,
            dtype=torch.int32,
            device=size.device,
            generator=draws(cx, self.seed, tensor),
        )
        # The chance that the noise carries into the exponent is the mantissa's share of the way upwards.
        drawn = ((size + noise) >> _MANTISSA_BITS).clamp_(max=_largest(tensor.dtype))
        exponents = torch.where(size >> _MANTISSA_BITS == 255, 255, drawn).to(torch.uint8)
        message = Powers(exponents, pack_codes(bits.lt(0).view(torch.uint8), 2))
        own = _summed([(1.0, message)], tensor) if keep_own else None
        parts = yield message
        return _summed(parts, tensor), own

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return numel + packed_bytes(numel, 2)


def _largest(dtype: torch.dtype) -> int:
    """The exponent, as in a float32, of the largest power of two of a type."""
    return min(254, 127 + math.frexp(torch.finfo(dtype).max)[1] - 1)


def _summed(parts: Parts, like: Tensor) -> Tensor:
    total = torch.zeros_like(like, dtype=wide(like.dtype))
    for weight, message in parts:
        assert isinstance(message, Powers), f"expected powers of two, got {message!r}"
        total.add_(message.decoded(), alpha=weight)
    return total
