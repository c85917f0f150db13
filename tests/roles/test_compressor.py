"""Codings inside the training loop's autocast: what is exchanged keeps its digits."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from relaxcomm import round_trip
from relaxcomm.primitives import dct_top_k, error_feedback, quantize, sign
from tests.engine.harness import in_process

CODERS = (
    dct_top_k(num_kept=4, chunk_size=16),
    error_feedback(dct_top_k(num_kept=4, chunk_size=16)),
    quantize(bits=4),
    sign(),
)


def low_precision():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("coder", CODERS, ids=repr)
def test_autocast_changes_no_coding(coder):
    tensors = list(torch.randn(3, 400, generator=torch.Generator().manual_seed(0)))
    expected = round_trip(coder, tensors)
    with low_precision():
        found = round_trip(coder, tensors)
        assert (tensors[0].view(20, 20) @ tensors[1].view(20, 20)).dtype == torch.bfloat16  # still on
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def train(world, algorithm, inside):
    """Parameters after some steps, of which backward and the optimizer's step may lie inside autocast."""
    model = nn.ParameterList(torch.ones(16, size) for size in (16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        for _ in range(4):
            optimizer.zero_grad()
            with low_precision() if inside else nullcontext():
                loss = sum((one * torch.randn(one.shape, generator=draw)).sum() for one in model)
                loss.backward()  # of which no product is rounded
                optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize(
    "algorithm", ["powersgd", {"name": "demo", "chunk_size": 16, "num_kept": 4}], ids=str
)
def test_steps_inside_autocast_exchange_the_same(algorithm):
    inside, outside = (in_process(train, 3, algorithm, inside) for inside in (True, False))
    assert all(torch.equal(one, other) for one, other in zip(inside, outside, strict=True))
