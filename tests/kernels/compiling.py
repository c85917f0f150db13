"""`python -m tests.kernels.compiling` compiles every kernel for a GPU that need not be there.

The functions that launch kernels run on a CPU's tensors, with a launch that only compiles. It prints each
program's bytes, and how many of its instructions read four numbers at once, read a byte, and wait for others.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from relaxcomm.kernels import dispatch
from relaxcomm.kernels.block_quantizer import quantize_blocks
from relaxcomm.kernels.block_selection import largest_in_blocks
from relaxcomm.kernels.compaction import compact
from relaxcomm.kernels.level_packing import pack_levels, pack_nonnegative
from relaxcomm.kernels.magnitude_statistics import magnitude_statistics
from relaxcomm.kernels.message_sums import sum_levels
from relaxcomm.kernels.normal_threshold import normal_threshold
from relaxcomm.kernels.segment_scales import scales_of, segment_scales
from relaxcomm.kernels.segment_statistics import ScaleRule
from relaxcomm.tensors.segments import Blocks, Segments

TARGET = GPUTarget("cuda", 90, 32)
NUMEL = 10_001  # of which a launch sees that it is no multiple of 16
SHARD = 5008  # entries of the first of two
OPTIONS = ("num_warps", "enable_fp_fusion")


def compile_only(kernel: JITFunction, *values: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """Stand in for a launch."""
    options = {name: named.pop(name) for name in OPTIONS if name in named}
    arguments = dict(zip(kernel.arg_names, values, strict=False)) | named
    constants = {
        one.name: arguments[one.name]
        for one in kernel.params
        if one.is_constexpr or (type(arguments[one.name]) is int and _is_taken_for_one(one, arguments))
    }
    signature = {
        name: "constexpr" if name in constants else mangle_type(value) for name, value in arguments.items()
    }
    divisible = {
        (place,): [["tt.divisibility", 16]]
        for place, one in enumerate(kernel.params)
        if one.name not in constants and not one.do_not_specialize and _divides(arguments[one.name])
    }
    source = ASTSource(kernel, signature, constants, divisible)
    made = triton.compile(source, target=TARGET, options=options)
    counts = (made.asm["ptx"].count(one) for one in ("ld.global.v4", "ld.global.b8", "bar.sync"))
    print(kernel.__name__, len(made.asm["cubin"]), *counts)


def _divides(value: Any) -> bool:
    """Whether a launch sees that it is a multiple of 16, as memory that torch gives begins at one."""
    return isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0)


def _is_taken_for_one(parameter: Any, arguments: dict[str, Any]) -> bool:
    """A launch makes a number that is 1 a constant, if it may."""
    return arguments[parameter.name] == 1 and not parameter.do_not_specialize


def compile_all() -> None:
    """Each kernel, and two of those that blocks, tables or types change much."""
    x, residual = torch.zeros(NUMEL, dtype=torch.bfloat16), torch.zeros(NUMEL)
    for one in (residual, x):
        found = magnitude_statistics(one, residual, 0.9, torch.empty(NUMEL))
    threshold = normal_threshold(found, k=10, capacity=14, quantile=3.29, fallback=True)
    compact(residual, threshold, found.largest, 14, dtype=x.dtype, subtract=True)
    blocks, tensors = Segments(NUMEL, 1024), Segments(NUMEL, None, (1, NUMEL - 1))
    keys = torch.zeros(2, 2, dtype=torch.int32)
    for segments, num_codes, key in (
        *((blocks, 256, (1, 2)), (blocks.cut(SHARD), 256, keys)),
        *((tensors, 3, (1, 2)), (tensors.cut(SHARD), 3, keys)),
    ):
        rule = ScaleRule("range", num_codes, symmetric=False) if num_codes == 256 else ScaleRule("clipped", 3)
        segment_scales(x, segments, rule, residual, 0.9, torch.empty(NUMEL))
        steps = torch.zeros(2, segments.count)
        lows = steps if num_codes == 256 else None
        scales = scales_of(steps[0], None if lows is None else lows[0], num_codes)
        codes = pack_levels(residual, scales, segments, num_codes, key, dtype=x.dtype, subtract=True)
        codes = codes.new_zeros(2, len(codes))
        sum_levels(codes, steps, lows, torch.ones(2), segments, num_codes)
    evenly = Segments(NUMEL - 1, 1024)  # messages so far apart that each begins where it can be read at once
    sum_levels(codes.new_zeros(2, evenly.numel), *torch.zeros(2, 2, 10), torch.ones(2), evenly, 256)
    quantize_blocks(x, blocks, 255, None, symmetric=True)
    quantize_blocks(x, blocks.cut(SHARD), 256, keys, residual=residual, out=torch.empty(NUMEL))
    quantize_blocks(x, Segments(NUMEL, 1000), 256, (1, 2), residual=residual, out=torch.empty(NUMEL))
    for chosen in ((Blocks(0, 4, NUMEL // 4, 3),), (Blocks(0, NUMEL // 16, 16, 1), Blocks(0, 1, 3, 1))):
        largest_in_blocks(x, chosen)
    pack_nonnegative(x, tensors)
    pack_nonnegative(residual, tensors, dtype=x.dtype, subtract=torch.zeros(2))


if __name__ == "__main__":
    JITFunction.run = compile_only
    dispatch._chosen.set("triton")
    compile_all()
