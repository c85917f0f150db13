"""An outer optimizer may write its value where the result was, which changes nothing else."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.primitives import average, nesterov, sgd
from tests.primitives.compressors.test_sparsifiers import bucket_of, context


def moved(outer, results, *, in_place):
    """Values and slots after each result."""
    bucket, base = bucket_of(results[0]), torch.ones_like(results[0])
    state, found = dict(outer.init(bucket)), []
    for step, result in enumerate(results):
        given = result.clone()
        value = outer.apply(context(step).at(out=given if in_place else None), bucket, state, given, base)
        assert in_place == (value.data_ptr() == given.data_ptr())
        assert all(slot.data_ptr() != value.data_ptr() for slot in state.values())
        found += [value.clone(), *(slot.clone() for slot in state.values())]
    assert torch.equal(base, torch.ones_like(base))
    return found


@pytest.mark.parametrize(
    "outer", [average(), sgd(lr=0.7), sgd(lr=0.7, momentum=0.9), nesterov(lr=0.7, momentum=0.9)], ids=repr
)
def test_a_value_in_the_results_memory_is_the_same(outer):
    results = [torch.randn(1000, generator=torch.Generator().manual_seed(step)) for step in range(3)]
    for one, other in zip(
        moved(outer, results, in_place=False), moved(outer, results, in_place=True), strict=True
    ):
        assert torch.equal(one, other)
