"""Compressors chosen by size and by name, and powers of two."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import by_name, by_size, error_feedback, identity, natural, power_sgd, quantize, sign, top_k
from relaxcomm.tensors.layout import Layout
from tests.algorithms.test_sparse_algorithms import rules
from tests.engine.harness import assert_histories_agree, in_process, simulated_workers, train
from tests.primitives.compressors.test_quantize import AWKWARD, code, conserves
from tests.references import bsp

SHAPES = (torch.Size([40, 5]), torch.Size([5]), torch.Size([0]), torch.Size([300]), torch.Size([7]))
LAYOUT = Layout(("a.weight", "a.bias", "empty", "b.weight", "b.bias"), SHAPES)


def parts(flat):
    ends = np.cumsum([0, *(shape.numel() for shape in SHAPES)])
    return [flat[a:b] for a, b in itertools.pairwise(ends)]


def signs(x):
    return np.where(x >= 0, 1, -1) * np.abs(x).mean()


@pytest.mark.parametrize(
    "compressor",
    [
        by_size(threshold=8, less=identity(), greater=sign()),
        by_name(names=("*.bias",), matching=identity(), others=sign()),
        by_name(
            names=("*.bias", "none"),
            matching=identity(),
            others=by_size(threshold=1, less=identity(), greater=sign()),
        ),
    ],
    ids=repr,
)
def test_each_tensor_has_its_own(compressor):
    flat = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(0))
    a, b, _, c, d = parts(flat.numpy())
    found = code(compressor, flat, layout=LAYOUT).numpy()
    np.testing.assert_allclose(found, np.concatenate([signs(a), b, signs(c), d]), rtol=1e-6)


def test_those_that_share_one_are_coded_together():
    flat = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(1))
    coder = by_name(names=("*.bias",), matching=identity(), others=top_k(density=0.1))
    a, b, _, c, d = parts(code(coder, flat, layout=LAYOUT))
    weights = torch.cat([parts(flat)[0], parts(flat)[3]])
    kept = torch.zeros_like(weights)
    chosen = weights.abs().topk(50).indices
    kept[chosen] = weights[chosen]
    assert torch.equal(torch.cat([a, c]), kept)
    assert torch.equal(torch.cat([b, d]), torch.cat([parts(flat)[1], parts(flat)[4]]))


@pytest.mark.parametrize(
    "compressor",
    [
        by_size(threshold=10, less=identity(), greater=sign()),
        natural(),
        by_name(names=("t*",), matching=sign(), others=sign()),
    ],
    ids=repr,
)
def test_error_feedback_loses_nothing(compressor):
    conserves(compressor)


@pytest.mark.parametrize("exchange", ["all_gather", "scatter_gather"])
@pytest.mark.parametrize("bucket_bytes", [64, 1200])
def test_over_the_engine(exchange, bucket_bytes):
    """With nothing lost it is bsp; with signs of large tensors, and their residual, replicas stay equal."""
    exact = {"by_size": {"threshold": 50, "less": "identity", "greater": {"cast": {"dtype": "float64"}}}}
    config = {"algorithm": rules(exact, exchange), "bucket_bytes": bucket_bytes}
    assert_histories_agree(in_process(train, 3, config, 8), bsp(simulated_workers(3), 8))
    named = {"names": ["*.bias"], "matching": "identity", "others": {"error_feedback": "sign"}}
    config = {"algorithm": rules({"by_name": named}, exchange), "bucket_bytes": bucket_bytes}
    found = in_process(train, 3, config, 8)
    for history in found[1:]:
        np.testing.assert_array_equal(history[-1], found[0][-1])


def test_what_cannot_be_sorted_is_refused():
    with pytest.raises(relaxcomm.CompositionError, match="one message"):
        by_size(threshold=8, less=identity(), greater=power_sgd(matrix_rank=1))
    with pytest.raises(relaxcomm.CompositionError, match="twice"):
        error_feedback(
            compressor=by_size(threshold=8, less=identity(), greater=error_feedback(compressor=sign()))
        )
    with pytest.raises(relaxcomm.CompositionError, match="mixed"):
        relaxcomm.Rule(
            payload=relaxcomm.gradients(),
            compressor=by_size(threshold=8, less=identity(), greater=quantize(bits=8)),
            exchange=relaxcomm.all_reduce(),
        )


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_natural_is_a_power_of_two_beside(name, dtype):
    tensor = AWKWARD[name].to(dtype)
    if not torch.isfinite(tensor).all():
        pytest.skip("beyond float16's range")
    x, y = tensor.double().numpy(), code(natural(), tensor).double().numpy()
    least = max(2.0**-126, float(torch.finfo(dtype).smallest_normal))
    large = np.abs(x) > least
    low = 2.0 ** np.floor(np.log2(np.abs(x[large])))
    size = np.abs(y[large])
    assert ((size == low) | ((size == 2 * low) & (low != np.abs(x[large])))).all()
    assert (np.sign(y[large]) == np.sign(x[large])).all()
    assert (np.abs(y[~large]) <= 2 * least).all()
    assert (y[x == 0] == 0).all()


def test_natural_is_unbiased():
    tensor = torch.tensor([0.3, -1.7, 5.5, 1.0, -3e-40, 1e-3, 0.0]).repeat(20)
    found = torch.stack([code(natural(), tensor, step=step).double() for step in range(1000)]).mean((0,))
    mean, exact = found.view(20, 7).mean(0), tensor[:7].double()
    spread = exact.abs() * 0.36  # the variance is at most an eighth
    spread[4] = 2.0**-126
    assert ((mean - exact).abs() <= 5 * spread / 20_000**0.5).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_natural_shows_what_is_not_finite(bad):
    tensor = torch.randn(100)
    tensor[50] = bad
    result = code(natural(), tensor)
    assert not torch.isfinite(result[50])
    assert torch.isfinite(result[:50]).all()
    largest = torch.tensor([torch.finfo(torch.float16).max], dtype=torch.float16)
    assert float(code(natural(), largest)) == 32768.0
