"""Blocks of entries as whole numbers of a few bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Literal

from torch import Tensor

from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Index, Steps, frozen
from relaxcomm.fields.schedules import ScheduledBits, largest, least, piecewise
from relaxcomm.kernels.block_quantizer import quantize_blocks, takes_blocks
from relaxcomm.kernels.dispatch import uses_numba
from relaxcomm.kernels.levels import levels_between, moves_to_zero
from relaxcomm.kernels.segment_statistics import ScaleRule
from relaxcomm.primitives.compressors.uniform_quantizer import QUANTIZER_FACTS, UniformQuantizer
from relaxcomm.roles import Coding, CompressorFacts, Context, State
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import Quantized
from relaxcomm.tensors.segments import Segments


@frozen
class quantize(UniformQuantizer):
    """Each block as `2^bits` levels between its least and its largest entry.

    `step = (max - min) / (2^bits - 1)`, `C(x) = min + step round((x - min) / step)`. Where 0 lies between and
    bits are 3 or more, `step = (max - min) / (2^bits - 2)`, and the lowest level is the next multiple of it
    below min, so that 0 stays 0: what no rank has a gradient for gets none, of which Adam would make a step.
    The error of an entry is at most step / 2 by "nearest" rounding and below step by "stochastic"
    rounding, which is unbiased; rounding of the arithmetic comes to it, and blocks whose step is below 2e-38
    become 0, or their least entry where 0 is no level. With `symmetric`, an odd number of levels
    `2^bits - 1` lies around 0, which stays 0. A block with NaN, infinity or a range about as large as the
    type's decodes to NaN or infinity.

    Args:
        bits: 1 to 8, and with `symmetric` 2 to 8; or a schedule.
        block_size: entries that share min and max, which are sent in float32 (float64 for float64).
        rounding: "nearest" or "stochastic".
        symmetric: levels around 0, as for entries evenly about it.
        seed: of the stochastic rounding.

    Raises: ConfigError for one symmetric bit.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import quantize
        >>> round_trip(quantize(bits=4), [torch.tensor([0.0, 0.4, 0.6, 15.0])])
        [tensor([ 0.,  0.,  1., 15.])]
    """

    bits: ScheduledBits
    block_size: Steps = 1024
    rounding: Literal["nearest", "stochastic"] = "nearest"
    symmetric: bool = False
    seed: Index = 0

    @cached_property
    def facts(self) -> CompressorFacts:
        return replace(
            QUANTIZER_FACTS, unbiased=self.stochastic, follows_clock=isinstance(self.bits, piecewise)
        )

    def __post_init__(self) -> None:
        if self.symmetric and least(self.bits) == 1:
            raise ConfigError(
                f"quantize: one bit has no levels around 0, got bits={self.bits!r} and symmetric=True; use "
                "bits=2 or more, or the compressor sign()"
            )

    @property
    def stochastic(self) -> bool:
        return self.rounding == "stochastic"

    @property
    def num_codes(self) -> int:
        return self._num_codes(largest(self.bits))

    def _num_codes(self, bits: float) -> int:
        return (1 << int(bits)) - (1 if self.symmetric else 0)

    @property
    def has_lows(self) -> bool:
        return not self.symmetric

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        if isinstance(self.bits, piecewise):
            return self._now(cx, self.bits).encode_decode(cx, tensor, state, keep_sent=keep_sent)
        return super().encode_decode(cx, tensor, state, keep_sent=keep_sent)

    def message_with_feedback(
        self, cx: Context, tensor: Tensor, residual: Tensor, decay: float, out: Tensor
    ) -> Quantized:
        if isinstance(self.bits, piecewise):
            return self._now(cx, self.bits).message_with_feedback(cx, tensor, residual, decay, out)
        return super().message_with_feedback(cx, tensor, residual, decay, out)

    def _now(self, cx: Context, bits: piecewise) -> quantize:
        """This quantizer with the bits of this step."""
        return replace(self, bits=int(bits.at(cx.step - cx.start)))

    def segments(self, layout: Layout) -> Segments:
        return Segments(layout.numel, self.block_size)

    def spread(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        low, high = rows.amin(1), rows.amax(1)  # together they take far less time than aminmax
        return levels_between(low, high, self.num_codes, symmetric=self.symmetric)

    @property
    def scale_rule(self) -> ScaleRule:
        return ScaleRule("range", self.num_codes, self.symmetric)

    def _suits_kernels(self, tensor: Tensor) -> bool:
        return super()._suits_kernels(tensor) or self._takes_blocks(tensor)

    def takes_shards(self, tensor: Tensor) -> bool:
        return super().takes_shards(tensor) and not isinstance(self.bits, piecewise)

    def _takes_blocks(self, tensor: Tensor) -> bool:
        blocks = Segments(tensor.numel(), self.block_size)
        return takes_blocks(tensor, blocks, self.num_codes, is_drawn=self.stochastic)

    def makes_difference(self, tensor: Tensor) -> bool:
        return self._takes_blocks(tensor) and uses_numba(tensor)

    def _in_kernels(
        self,
        cx: Context,
        tensor: Tensor,
        residual: Tensor | None = None,
        decay: float = 1.0,
        out: Tensor | None = None,
    ) -> Quantized:
        if not self._takes_blocks(tensor):
            return super()._in_kernels(cx, tensor, residual, decay, out)
        segments = self._segments(cx, tensor).cut(cx.shard_size)
        codes, steps, lows = quantize_blocks(
            *(tensor, segments, self.num_codes, self._key(cx, tensor)),
            symmetric=self.symmetric,
            residual=residual,
            decay=decay,
            out=out,
            difference=cx.difference,
        )
        return Quantized(codes, steps, lows, self.num_codes, segments)

    def contraction(self, numel: int) -> float | None:
        # Half a step lost on each entry, drawn ones on average; the outermost hold range^2 / 2 at least, or
        # range^2 / 4 if one of them alone sets a symmetric range.
        num_codes, held = self._num_codes(least(self.bits)), 1 / 4 if self.symmetric else 1 / 2
        steps = num_codes - (2 if moves_to_zero(num_codes, symmetric=self.symmetric) else 1)
        return min(numel, self.block_size) / (4 * steps**2 * held)


@frozen
class minmax_uint8(quantize):
    """`quantize` with 8 bits, in Bagua's name: 256 levels from a block's least entry to its largest.

    `step = (max - min) / 255`, `C(x) = min + step round((x - min) / step)`, or 1 / 254 of the range where 0
    lies between, which then is a level.

    Args:
        bits: of an entry.
        block_size: entries that share min and max.
        rounding: "nearest", as Bagua's, or "stochastic".
        symmetric: levels around 0, as of `quantize`.
        seed: of the stochastic rounding.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import minmax_uint8
        >>> round_trip(minmax_uint8(), [torch.tensor([0.0, 0.4, 0.6, 255.0])])
        [tensor([  0.,   0.,   1., 255.])]

    Reference: Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2022.

    Differs from the code: min and max are those of blocks rather than of a whole chunk, so that an outlier
        spoils its block alone; entries that all lie on one side of 0 are counted from min rather than from
        0, so that a large offset does not overflow; nothing is added to the range, so that small entries
        keep their accuracy.
    """

    bits: Literal[8] = 8

    facts = quantize.facts
