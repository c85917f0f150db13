"""Scales by every rule: those that are made of extremes bit for bit, sums but for their order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relaxcomm.kernels.segment_scales import segment_scales
from relaxcomm.kernels.segment_statistics import ScaleRule
from relaxcomm.tensors.segments import Segments
from tests.kernels.comparing import DTYPES, KINDS, SIZES, both, entries, same_bits
from tests.kernels.interpreter import DEVICE

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
RULES = (
    ScaleRule("range", 16, symmetric=False),
    ScaleRule("range", 15),
    ScaleRule("norm", 15, factor=1 / 7),
    ScaleRule("clipped", 3, factor=2.5),
    ScaleRule("mean", 2, factor=2.0),
)
RULE = pytest.mark.parametrize("rule", RULES, ids=lambda one: f"{one.kind} {one.num_codes}")
BLOCKS = (1, 7, 64, 1000, 5000)
TENSORS = ((5,), (1, 1, 1), (3, 5000, 1, 17), (4096, 4097))


def made(tensor, segments, rule, residual=None, out=None):
    scales = segment_scales(tensor, segments, rule, residual, 0.5, out)
    several = (scales.steps, scales.inverses, scales.lows, *(scales.origins or ()), out)
    return [one for one in several if one is not None]


def check_same(found, expected, rule):
    for one, other in zip(found, expected, strict=True):
        if rule.kind == "range":
            assert same_bits(one, other)
        else:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=0, equal_nan=True)


@RULE
@pytest.mark.parametrize("numel", SIZES)
def test_both_implementations_make_the_same_of_blocks(numel, rule, kernels):
    for block in BLOCKS:
        check_same(*both(made, entries(numel), Segments(numel, block), rule), rule)


@RULE
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_make_the_same_of_tensors(dtype, rule, kernels):
    for sizes in TENSORS:
        x, residual = entries(sum(sizes), dtype), entries(sum(sizes), seed=1)
        segments = Segments(sum(sizes), None, sizes)
        check_same(*both(made, x, segments, rule), rule)
        check_same(*both(made, x, segments, rule, residual, torch.empty_like(residual)), rule)


@RULE
@pytest.mark.parametrize("kind", KINDS)
def test_both_make_the_same_of_all_kinds_of_entries(kind, rule, kernels):
    for segments in (Segments(1025, 100), Segments(1025, None, (25, 1000))):
        check_same(*both(made, entries(1025, kind=kind), segments, rule), rule)


def test_the_lowest_level_lies_below_the_least_subnormal_entry(kernels, monkeypatch):
    """A GPU's floor takes subnormal numbers for 0, and the interpreter's is made to."""
    from triton.runtime.interpreter import InterpreterBuilder

    def floor(builder, number):
        return builder.unary_op(number, lambda x: np.floor(np.where(np.abs(x) < SMALLEST_NORMAL, 0 * x, x)))

    monkeypatch.setattr(InterpreterBuilder, "create_floor", floor)
    x = torch.tensor([1.0, -1e-44, -1e-44, 1.0, -1e-44, 1.0], device=DEVICE)
    for segments in (Segments(6, 2), Segments(6, None, (2, 4))):
        found, expected = both(made, x, segments, ScaleRule("range", 256, symmetric=False))
        assert torch.equal(expected[2], -expected[0])  # one step below 0
        check_same(found, expected, ScaleRule("range", 256, symmetric=False))
