"""Distances of the levels of every segment, and what rounding to them asks for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from relaxcomm.kernels.dispatch import on_its_device, uses_triton
from relaxcomm.kernels.levels import inverse_steps, origins
from relaxcomm.kernels.segment_statistics import ScaleRule, segment_statistics
from relaxcomm.tensors.segments import Segments


@dataclass(frozen=True, eq=False)
class SegmentScales:
    """Of each segment, `[count]` float32.

    Args:
        steps: distances of the levels.
        inverses: of these, as `inverse_steps`.
        lows: the lowest levels, or None where they lie around 0.
        origins: as `origins`, or None likewise.
    """

    steps: Tensor
    inverses: Tensor
    lows: Tensor | None
    origins: tuple[Tensor, Tensor] | None


def scales_of(steps: Tensor, lows: Tensor | None, num_codes: int) -> SegmentScales:
    """The scales of steps and lowest levels.

    Example:
        >>> import torch
        >>> scales_of(torch.tensor([0.5]), torch.tensor([-1.0]), num_codes=4).origins
        (tensor([0.]), tensor([2.]))
    """
    inverses = inverse_steps(steps)
    return SegmentScales(
        steps, inverses, lows, None if lows is None else origins(steps, inverses, lows, num_codes)
    )


def segment_scales(
    tensor: Tensor,
    segments: Segments,
    rule: ScaleRule,
    residual: Tensor | None = None,
    decay: float = 1.0,
    out: Tensor | None = None,
) -> SegmentScales:
    """Scales by a rule, of which all entries are read once; of a residual see `segment_statistics`.

    Example:
        >>> import torch
        >>> from relaxcomm.kernels.segment_statistics import ScaleRule
        >>> from relaxcomm.tensors.segments import Segments
        >>> rule = ScaleRule("range", num_codes=4, symmetric=False)
        >>> segment_scales(torch.tensor([0.0, 3.0, 5.0, 8.0]), Segments(4, block_size=2), rule).lows
        tensor([0., 5.])
    """
    if uses_triton(tensor):
        from relaxcomm.kernels.compiled import triton_segment_scales

        with on_its_device(tensor):
            made = triton_segment_scales.launch(tensor, segments, rule, residual, decay, out)
        return SegmentScales(*made)
    steps, lows = rule.of(segment_statistics(tensor, segments, residual, decay, out))
    return scales_of(steps, None if rule.symmetric else lows, rule.num_codes)
