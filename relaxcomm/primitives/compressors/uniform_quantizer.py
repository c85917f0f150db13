"""What all quantisers share: entries as evenly spaced levels of their segment, drawn or rounded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from relaxcomm.kernels.code_lanes import fraction_bits, is_one_layer
from relaxcomm.kernels.dispatch import is_for_kernels
from relaxcomm.kernels.level_packing import pack_levels
from relaxcomm.kernels.levels import inverse_steps, origins
from relaxcomm.kernels.philox import Keys, key_of
from relaxcomm.kernels.segment_scales import segment_scales
from relaxcomm.kernels.segment_statistics import ScaleRule
from relaxcomm.primitives.compressors.fused_feedback import QuantizedFeedback
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.roles import Coding, Context, State
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.bit_packing import pack_codes, packed_bytes
from relaxcomm.tensors.host_copies import on_device
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.messages import QUANTIZED, Quantized
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.segments import Group, Segments, chunk_size
from relaxcomm.tensors.shards import shards_of

QUANTIZER_FACTS = replace(
    identity.facts, kinds=frozenset({QUANTIZED}), scope="bucket", linear=False, keeps_finite=False
)
"""The facts of a quantiser that draws, in blocks."""


class UniformQuantizer(QuantizedFeedback):
    """Sends each entry as one of `num_codes` levels of its segment; `spread` says which.

    Without lows the levels lie around 0, an odd number of them, so that 0 stays 0.
    """

    seed: int

    @property
    @abstractmethod
    def num_codes(self) -> int:
        """2 to 256."""

    @property
    def stochastic(self) -> bool:
        """Whether an entry between two levels is drawn to one of them, in proportion to its distance."""
        return True

    @property
    def has_lows(self) -> bool:
        """Whether the lowest level of a segment is sent."""
        return False

    @abstractmethod
    def segments(self, layout: Layout) -> Segments:
        """Which entries share their levels."""

    @abstractmethod
    def spread(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Distance of the levels and the lowest (not looked at around 0), each `[num]`, for `[num, size]`."""

    def spread_each(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The same for segments of several sizes, each on its own."""
        steps, lows = zip(*(self.spread(part.view(1, -1)) for part in parts), strict=True)
        return torch.cat(steps), torch.cat(lows)

    @property
    @abstractmethod
    def scale_rule(self) -> ScaleRule:
        """The same for kernels, which look at all segments at once."""

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        message = (self._in_kernels if self._suits_kernels(tensor) else self._message)(cx, tensor)
        parts = yield message
        sent = self.decoded([(1.0, message)], tensor) if keep_sent else None  # held by nobody on its way
        return self.decoded(parts, tensor, cx.out), sent

    def _segments(self, cx: Context, tensor: Tensor) -> Segments:
        """Those of a tensor, which may be a piece of the bucket unless its layout is looked at."""
        looks, numel = self.facts.scope == "tensor", tensor.numel()
        return self.segments(cx.layout_of(numel) if looks else one_tensor(numel))

    def takes_feedback(self, tensor: Tensor) -> bool:
        return self._suits_kernels(tensor)

    def takes_shards(self, tensor: Tensor) -> bool:
        return super().takes_shards(tensor) and is_one_layer(self.num_codes)

    def _suits_kernels(self, tensor: Tensor) -> bool:
        """Whether kernels make the message."""
        return is_for_kernels(tensor)

    def message_with_feedback(
        self, cx: Context, tensor: Tensor, residual: Tensor, decay: float, out: Tensor
    ) -> Quantized:
        return self._in_kernels(cx, tensor, residual, decay, out)

    def _message(self, cx: Context, tensor: Tensor) -> Quantized:
        segments, size = self._segments(cx, tensor), chunk_size(tensor)
        kept = wide(tensor.dtype)
        steps = torch.empty(segments.count, dtype=kept, device=tensor.device)
        lows = torch.empty(segments.count if self.has_lows else 0, dtype=kept, device=tensor.device)
        codes = buffer_pool.empty_like(tensor, torch.uint8)
        generator = cx.generator(self.seed, tensor.device, tensor.numel()) if self.stochastic else None
        rounding = _Rounding(self.num_codes, self.has_lows, min(size, tensor.numel()), steps, generator)
        for group in segments.groups(size):
            rows = group.rows(tensor).to(kept)
            step, low = self.spread_each(group.split(rows)) if group.sizes else self.spread(rows)
            group.own(steps).copy_(step)
            if self.has_lows:
                group.own(lows).copy_(low)
            for chunk in group.chunks(size):
                rounding.round(chunk, tensor, step, low if self.has_lows else None, codes)
        return Quantized(pack_codes(codes, self.num_codes), steps, lows, self.num_codes, segments)

    def _in_kernels(
        self,
        cx: Context,
        tensor: Tensor,
        residual: Tensor | None = None,
        decay: float = 1.0,
        out: Tensor | None = None,
    ) -> Quantized:
        """The message, with feedback or without; how many kernels run does not depend on the segments."""
        segments = self._segments(cx, tensor).cut(cx.shard_size)
        scales = segment_scales(tensor, segments, self.scale_rule, residual, decay, out)
        codes = pack_levels(
            tensor if out is None else out,
            *(scales, segments, self.num_codes, self._key(cx, tensor)),
            dtype=tensor.dtype,
            subtract=out is not None,
        )
        steps, lows = scales.steps, scales.steps[:0] if scales.lows is None else scales.lows
        return Quantized(codes, steps, lows, self.num_codes, segments)

    def _key(self, cx: Context, tensor: Tensor) -> Keys | None:
        """The key of this step's random words, or one for each shard, if entries are drawn."""
        if not self.stochastic:
            return None
        if cx.shard_size is None:
            return key_of(cx.number(self.seed, tensor.numel()))
        shards = [(start, shard.numel()) for start, shard in shards_of(tensor, cx.membership.world_size)]
        keys = [key_of(cx.part(start, numel).number(self.seed, numel)) for start, numel in shards]
        return on_device(torch.tensor(keys, dtype=torch.int32), tensor.device)

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.layout_bytes(one_tensor(numel), element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        scales = self.segments(layout).count * (2 if self.has_lows else 1)
        return packed_bytes(layout.numel, self.num_codes) + scales * max(4, element_bytes)


class _Rounding:
    """From entries to codes, in buffers that stay in the cache."""

    def __init__(
        self, num_codes: int, has_lows: bool, size: int, like: Tensor, generator: torch.Generator | None
    ) -> None:
        self._num_codes, self._generator = num_codes, generator
        self._bits = fraction_bits(num_codes, has_lows=has_lows)
        self._places = buffer_pool.empty(size, like.dtype, like.device)
        if generator is not None:
            self._fixed, self._noise = (
                torch.empty(size, dtype=torch.int32, device=like.device) for _ in range(2)
            )

    def round(self, group: Group, x: Tensor, step: Tensor, low: Tensor | None, codes: Tensor) -> None:
        """Write the codes of the nearest levels, or of drawn ones of those beside; without lows around 0."""
        rows, codes = group.rows(x), group.rows(codes)
        # Of a step that is not a normal number no inverse exists; its entries are told apart no more.
        inverse, places = inverse_steps(step), self._places[: rows.numel()].view(rows.shape)
        zero: Tensor | int = (self._num_codes - 1) // 2
        if low is not None:
            shift, zero = map(group.beside, origins(step, inverse, low, self._num_codes))
            rows = torch.sub(rows, shift, out=places)
        torch.mul(rows, group.beside(inverse), out=places)
        if self._generator is not None:
            zero = zero if isinstance(zero, int) else zero.int()
            self._draw(group, places, zero, codes, self._generator)
            return
        # Added to a number so large that its last bit stands for 1, they are rounded, and their bits can be
        # read as a whole number: a conversion from float to 8 bits would take three times as long.
        bits = places.add_(zero + 1 / torch.finfo(places.dtype).eps).view(_WHOLE[places.dtype])
        codes.copy_(bits)  # the last eight

    def _draw(
        self, group: Group, places: Tensor, zero: Tensor | int, codes: Tensor, generator: torch.Generator
    ) -> None:
        """`floor(place + u)`, u uniform in [0, 1), so that a place between two levels is met on average.

        In fixed point: a float next to a level that is not 0 has no bits for small draws. What is below its
        last bit counts by a draw that a whole chunk shares, or of segments of several sizes each has its own,
        so no place is too near to a level to leave it.
        """
        bits = self._bits
        most = (1 << 31) - (1 << bits)  # whole, and in an int32 with any noise
        fixed, noise = (one[: places.numel()].view(places.shape) for one in (self._fixed, self._noise))
        own = group.split(noise)
        last = places.new_empty(len(own))
        for one, part in zip(last.unbind(), own, strict=True):
            one.uniform_(generator=generator)
            part.random_(generator=generator)
        torch.add(group.beside(last), places, alpha=1 << bits, out=places)
        places.clamp_(-most, most).floor_()
        noise.bitwise_and_((1 << bits) - 1)
        fixed.copy_(places).add_(noise).bitwise_right_shift_(bits).add_(zero)
        codes.copy_(fixed.clamp_(0, self._num_codes - 1))  # NaN may become any number


_WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}


def tensor_segments(layout: Layout) -> Segments:
    """A segment for each tensor."""
    return Segments(layout.numel, None, tuple(shape.numel() for _, shape, _ in layout.spans()))
