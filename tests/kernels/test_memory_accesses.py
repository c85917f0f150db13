"""Kernels that a GPU would run wrongly fail in the interpreter, too."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.interpreter import HAS_GPU, REASON

if REASON is None:
    import triton
    import triton.language as tl

    @triton.jit
    def _copy(from_ptr, to_ptr, numel, SIZE: tl.constexpr, ALIGNED: tl.constexpr, APART: tl.constexpr):
        place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        pointers = tl.max_contiguous(tl.multiple_of(from_ptr + place * APART, [ALIGNED]), [SIZE])
        tl.store(to_ptr + place, tl.load(pointers, mask=place < numel, other=0), mask=place < numel)

    @triton.jit
    def _reverse(ptr, size, SIZE: tl.constexpr, HAS_BARRIER: tl.constexpr):
        place = tl.arange(0, SIZE)
        tl.store(ptr + place, place, mask=place < size)
        if HAS_BARRIER:
            tl.debug_barrier()
        tl.store(ptr + size + place, tl.load(ptr + size - 1 - place, mask=place < size), mask=place < size)

    @triton.jit
    def _count(ptr, ATOMIC: tl.constexpr):
        if ATOMIC:
            tl.atomic_add(ptr, 1, sem="relaxed")
        else:
            tl.store(ptr, tl.load(ptr) + 1)


pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.skipif(HAS_GPU, reason="compute-sanitizer looks at what kernels do on a GPU"),
]


def copied(numel, *, given=None, aligned=4, apart=1, programs=2):
    x, out = torch.arange(16, dtype=torch.int32)[:given], torch.zeros(16, dtype=torch.int32)
    _copy[(programs,)](x, out, numel, SIZE=8, ALIGNED=aligned, APART=apart)
    return out


def test_a_kernel_that_stays_inside_runs():
    assert copied(13).tolist() == [*range(13), 0, 0, 0]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"given": 12}, "_copy: program 1 reads 1 entries of no tensor that it was given"),
        ({"numel": 17, "programs": 3}, "_copy: program 2 reads 1 entries of no tensor"),
        ({"aligned": 64}, "an address is no multiple of 64"),
        ({"apart": 2}, "8 addresses do not follow each other"),
    ],
    ids=["view", "end", "aligned", "apart"],
)
def test_what_a_gpu_would_read_elsewhere_is_found(fault, words):
    with pytest.raises(triton.runtime.errors.InterpreterError, match=words):
        copied(**{"numel": 13, **fault})


def test_programs_may_only_meet_in_atomic_operations():
    total = torch.zeros(1, dtype=torch.int32)
    _count[(3,)](total, ATOMIC=True)
    assert total.item() == 3
    with pytest.raises(
        triton.runtime.errors.InterpreterError, match="program 1 reads what another program writes"
    ):
        _count[(3,)](total, ATOMIC=False)


def test_threads_see_what_others_have_written_behind_a_barrier():
    found = torch.zeros(12, dtype=torch.int32)
    _reverse[(1,)](found, 6, SIZE=8, HAS_BARRIER=True)
    assert found.tolist() == [0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0]
    with pytest.raises(triton.runtime.errors.InterpreterError, match="without a barrier"):
        _reverse[(1,)](found, 6, SIZE=8, HAS_BARRIER=False)
