"""Random models, bucket sizes and used parts: nothing is skipped, whatever lies where."""

from __future__ import annotations

import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from tests.engine.harness import World, in_process

RANKS = 3
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
SPECS = st.lists(
    st.tuples(
        SHAPES,
        st.sampled_from(["float32", "float64", "bfloat16"]),
        st.booleans(),  # a transposed view, so not contiguous
        st.booleans(),  # trainable
        st.tuples(*[st.booleans()] * RANKS),  # used by which ranks
    ),
    min_size=1,
    max_size=9,
)


class Soup(nn.Module):
    """Parameters of any shape; a parameter that is used gets a gradient that depends on the rank."""

    def __init__(self, specs, rank: int) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(3, dtype=torch.float64))  # so that every rank has a backward
        for index, (shape, dtype, transposed, trainable, _) in enumerate(specs):
            generator = torch.Generator().manual_seed(100 * rank + index)
            value = torch.randn(shape, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))
            if transposed and value.dim() >= 2:
                value = value.transpose(0, -1).contiguous().transpose(0, -1)
            self.register_parameter(f"p{index}", nn.Parameter(value, requires_grad=trainable))

    def forward(self, used) -> torch.Tensor:
        total = self.anchor.sum()
        for index, flag in enumerate(used):
            if flag:
                total = total + getattr(self, f"p{index}").double().sum()
        return total


def slope(rank: int, index: int, step: int) -> float:
    """The gradient of every entry of p`index`: small integers, exact in every dtype, sums included."""
    return float((3 * rank + 5 * index + 7 * step) % 8 - 3)


def backward(model: Soup, specs, rank: int, step: int) -> None:
    used = [spec[3] and spec[4][rank] for spec in specs]
    total = model([False] * len(specs)) if step == 0 and not any(used) else model(used)
    for index, flag in enumerate(used):
        if flag:
            total = total + (slope(rank, index, step) - 1) * getattr(model, f"p{index}").double().sum()
    total.backward()


def gradients(world: World, specs, bucket_bytes: int, set_to_none: bool):
    model = Soup(specs, world.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    found = []
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": bucket_bytes}):
        start = [parameter.detach().clone() for parameter in model.parameters()]
        for step in range(3):
            backward(model, specs, world.rank, step)
            found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad(set_to_none)
    return start, found


@settings(max_examples=40, deadline=None, derandomize=True)
@given(specs=SPECS, bucket_bytes=st.sampled_from([1, 40, 300, 1 << 20]), set_to_none=st.booleans())
def test_every_gradient_is_the_mean_over_the_ranks(specs, bucket_bytes, set_to_none):
    initial = [parameter.detach() for parameter in Soup(specs, 0).parameters()]
    for start, found in in_process(gradients, RANKS, specs, bucket_bytes, set_to_none):
        for broadcast, expected in zip(start, initial, strict=True):
            torch.testing.assert_close(broadcast, expected, rtol=0, atol=0)
        for step, row in enumerate(found):
            torch.testing.assert_close(row[0], torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=0)
            for index, ((shape, dtype, _, trainable, ranks), grad) in enumerate(
                zip(specs, row[1:], strict=True)
            ):
                if not (trainable and any(ranks)):
                    assert grad is None, f"p{index}, step {step}"
                    continue
                total = sum(slope(rank, index, step) for rank in range(RANKS) if ranks[rank])
                expected = torch.full(shape, total / RANKS).to(getattr(torch, dtype))
                torch.testing.assert_close(
                    grad, expected, rtol=0 if dtype == "bfloat16" and total % 3 == 0 else 1e-2, atol=0
                )
                if dtype != "bfloat16":
                    torch.testing.assert_close(
                        grad.double(), torch.full(shape, total / RANKS).double(), rtol=1e-6, atol=0
                    )


def averages(world: World, specs, bucket_bytes: int, algorithm):
    model = Soup(specs, world.rank)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    locals_, found, storage = [], [], []
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": bucket_bytes}):
        for step in range(4):
            backward(model, specs, world.rank, step)
            before = [parameter.detach().clone() for parameter in model.parameters()]
            locals_.append(
                [
                    b if p.grad is None else b - 0.5 * p.grad
                    for b, p in zip(before, model.parameters(), strict=True)
                ]
            )
            storage.append([parameter.stride() for parameter in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
            found.append([parameter.detach().clone() for parameter in model.parameters()])
    return locals_, found, storage


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    specs=SPECS,
    bucket_bytes=st.sampled_from([1, 40, 300, 1 << 20]),
    rule=st.sampled_from(["local_sgd", "diloco"]),
)
def test_every_parameter_is_the_mean_over_the_ranks_after_a_period(specs, bucket_bytes, rule):
    """diloco with lr 1 and no momentum is an average too, by another way."""
    algorithm = {"name": rule, "steps": 2} | ({"lr": 1.0, "momentum": 0.0} if rule == "diloco" else {})
    results = in_process(averages, RANKS, specs, bucket_bytes, algorithm)
    for step in range(4):
        for index in range(len(specs) + 1):
            own = [locals_[step][index] for locals_, _, _ in results]
            low = own[0].dtype == torch.bfloat16
            for rank, (_, found, strides) in enumerate(results):
                trained = index == 0 or specs[index - 1][3]
                expected = (
                    torch.stack(own).double().mean(0).to(own[0].dtype) if step % 2 and trained else own[rank]
                )
                # the difference to an anchor is rounded at the anchor's size
                tolerance = {"rtol": 2e-2, "atol": 5e-2} if low else {"rtol": 1e-5, "atol": 1e-5}
                torch.testing.assert_close(found[step][index], expected, **tolerance)
                assert strides[step][index] == strides[0][index]
