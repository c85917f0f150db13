"""Drawn levels and signs against definitions in NumPy, on awkward tensors, with several tensors in one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import primitives
from relaxcomm.network.operations import Label
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import error_feedback, qsgd, quantize, sign, terngrad
from relaxcomm.roles import Context
from relaxcomm.tensors.layout import Layout
from tests.primitives.compressors.test_quantize import AWKWARD, conserves, decoded

BLOCK = 64
SHAPES = (torch.Size([7, 9]), torch.Size([0, 4]), torch.Size([1]), torch.Size([300]), torch.Size([5, 5]))
LAYOUT = Layout(tuple("abcde"), SHAPES)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def cuts(sizes):
    return np.cumsum([0, *sizes])


def by_tensor(values):
    """The parts of a vector that are tensors of LAYOUT, without the empty one."""
    ends = cuts([shape.numel() for shape in SHAPES])
    return [values[a:b] for a, b in itertools.pairwise(ends) if b > a]


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("levels", [1, 7, 127])
def test_qsgd_draws_one_of_the_two_levels_beside(name, dtype, levels):
    tensor = AWKWARD[name].to(dtype)
    if not torch.isfinite(tensor).all():
        pytest.skip("beyond float16's range")
    result = decoded(qsgd(levels=levels, block_size=BLOCK), tensor).double().numpy()
    exact = tensor.double().numpy()
    for start in range(0, len(exact), BLOCK):
        x, y = exact[start : start + BLOCK], result[start : start + BLOCK]
        step = np.linalg.norm(x) / levels
        finest = torch.finfo(dtype).eps * np.abs(x).max() * 4 + 256 * 2e-38
        assert (np.abs(y - x) <= step * 1.0001 + finest).all()
        assert (y[x == 0] == 0).all()
        if step > 1e-30:
            assert (
                np.abs(y / step - np.rint(y / step)).max() < 1e-2 * levels
            )  # a level, to the dtype's rounding


@pytest.mark.parametrize("blocks", [qsgd(levels=7, block_size=BLOCK), quantize(bits=4, block_size=BLOCK)])
def test_blocks_are_those_of_a_piece_wherever_its_tensors_lie(blocks):
    piece = torch.randn(100, generator=torch.Generator().manual_seed(0))
    cx = Context(step=0, start=0, membership=Membership(0, 3), learning_rate=lambda bucket: 0.1)
    alone, inside = (
        next(blocks.encode_decode(one, piece, {}, keep_sent=False)).pack()
        for one in (cx, cx.at(layout=LAYOUT))
    )
    assert alone.equal(inside)


def test_terngrad_has_one_size_a_tensor():
    tensor = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(0))
    tensor[100] = 50.0  # clipped
    result = decoded(terngrad(), tensor, layout=LAYOUT).numpy()
    for x, y in zip(by_tensor(tensor.double().numpy()), by_tensor(result), strict=True):
        size = min(np.abs(x).max(), 2.5 * np.sqrt(np.mean(x**2)))
        np.testing.assert_allclose(np.abs(y[y != 0]), size, rtol=1e-6)
        assert (y * x >= 0).all()
        assert (np.abs(y[np.abs(x) >= size * 1.00001]) > 0).all()
    assert result[100] < 20


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_terngrad_on_awkward_tensors(name, dtype):
    tensor = AWKWARD[name].to(dtype)
    if not torch.isfinite(tensor).all():
        pytest.skip("beyond float16's range")
    result = decoded(terngrad(clip=None), tensor).double()
    size = tensor.double().abs().max()
    near = torch.minimum(result.abs(), (result.abs() - size).abs())
    assert float(near.max()) <= float(size) * 0.01
    if name in ("constant", "one"):
        assert float((result - tensor.double()).abs().max()) <= 0.01 * float(size)


@pytest.mark.parametrize("compressor", [qsgd(block_size=BLOCK), terngrad(clip=None)], ids=repr)
def test_drawing_is_unbiased(compressor):
    tensor, times = torch.linspace(-2, 3, 200), 1000
    drawn = torch.stack([decoded(compressor, tensor, step=step).double() for step in range(times)])
    error = (drawn.mean(0) - tensor.double()).abs()
    spread = drawn.std(0).clamp(min=float(drawn.std(0).median()) / 5)  # rare draws may not have come at all
    assert (error <= 5 * spread / times**0.5).all()
    squares = (drawn - tensor).square().sum(1).mean()
    bound = compressor.contraction(200)
    assert bound is None or squares <= bound * tensor.square().sum()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sign_against_numpy(dtype):
    tensor = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(3)).to(dtype)
    tensor[5], tensor[6] = 0.0, -0.0
    result = decoded(sign(), tensor, layout=LAYOUT).double().numpy()
    for x, y in zip(by_tensor(tensor.double().numpy()), by_tensor(result), strict=True):
        np.testing.assert_allclose(
            y, np.where(x >= 0, 1, -1) * np.abs(x).mean(), rtol=torch.finfo(dtype).eps * 2
        )


@pytest.mark.parametrize("name", AWKWARD)
def test_sign_contracts(name):
    tensor = AWKWARD[name]
    lost = (decoded(sign(), tensor).double() - tensor.double()).square().sum()
    assert lost <= sign().contraction(tensor.numel()) * tensor.double().square().sum() * 1.0001 + 1e-70


@pytest.mark.parametrize("compressor", [sign(), terngrad()], ids=repr)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_its_tensor_alone(compressor, bad):
    tensor = torch.randn(LAYOUT.numel)
    clean = by_tensor(decoded(compressor, tensor, layout=LAYOUT).numpy())
    tensor[80] = bad  # of the third tensor
    parts = by_tensor(decoded(compressor, tensor, layout=LAYOUT).numpy())
    assert [np.isfinite(part).any() for part in parts] == [True, True, False, True]
    for index in (0, 1, 3):
        np.testing.assert_array_equal(parts[index], clean[index])


@pytest.mark.parametrize("compressor", [sign(), terngrad(), qsgd()], ids=repr)
def test_error_feedback_loses_nothing(compressor):
    conserves(compressor)


def voted(rows, compressor=None):
    """What every rank gets of its row after a vote."""
    coder, exchange = compressor or sign(), primitives.vote()

    def rank(group):
        transport, size = group.transport(), len(rows)
        cx = Context(
            step=0, start=0, membership=Membership(group.rank(), size), learning_rate=lambda bucket: 0.1
        )
        running = exchange.run(cx, torch.from_numpy(rows[group.rank()].copy()), coder, {})
        operation, stage = next(running), 0
        try:
            while True:
                stage += 1
                operation = running.send(transport.issue(operation, Label(0, "0", 0, stage)).wait())
        except StopIteration as stop:
            return stop.value.numpy()

    return relaxcomm.simulate(rank, len(rows))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("numel", [1, 3, 101])
def test_the_majority_wins(size, numel):
    rows = np.random.default_rng(size + numel).standard_normal((size, numel)).astype(np.float32)
    count = np.sign(rows).sum(axis=0)
    piece = -(-numel // size)
    for place in np.flatnonzero(count == 0):  # the worker that counts decides
        count[place] = np.sign(rows[place // piece, place])
    for found in voted(rows):
        np.testing.assert_array_equal(found, np.sign(count))


def test_a_vote_on_what_is_not_finite_is_nan_everywhere():
    rows = np.random.default_rng(0).standard_normal((3, 30)).astype(np.float32)
    rows[1, 12] = np.nan
    for found in voted(rows):
        assert np.isnan(found[10:20]).all()  # the part that one worker counts
        assert np.isfinite(found[:10]).all()


def test_votes_have_no_rest():
    with pytest.raises(relaxcomm.CompositionError, match="votes"):
        relaxcomm.Rule(
            payload=primitives.gradients(),
            compressor=error_feedback(compressor=sign()),
            exchange=primitives.vote(),
        )
    with pytest.raises(relaxcomm.CompositionError, match="signs"):
        relaxcomm.Rule(payload=primitives.gradients(), compressor=qsgd(), exchange=primitives.vote())
