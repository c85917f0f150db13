"""Robust means against NumPy, and that one bad worker of four does not spoil a training that they average."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import CompositionError, Rule, TopologyError
from relaxcomm.checks.compressor_trials import NUMEL
from relaxcomm.checks.exchange_trials import exchanged
from relaxcomm.primitives import (
    all_reduce,
    cast,
    client_deltas,
    coordinate_median,
    error_feedback,
    every_round,
    gradients,
    norm_test,
    quantize,
    random_k,
    top_k,
    trimmed_mean,
)
from relaxcomm.primitives.exchanges.robust_mean import mean_of_middle
from relaxcomm.testing import PretendGpu


def drawn(rank, dtype=torch.float32):
    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 + rank))
    return (values * 10.0 ** (rank % 3)).to(dtype)


def trimmed_in_numpy(rows, trim):
    ordered = np.sort(np.asarray(rows, dtype=np.float64), axis=0)
    return ordered[trim : len(rows) - trim].mean(0)


@pytest.mark.parametrize(("size", "trim"), [(3, 1), (4, 1), (5, 2), (8, 1), (8, 3)])
def test_trimmed_mean(size, trim):
    results = [one.result for one in exchanged(trimmed_mean(trim=trim), size, put_in=drawn)]
    expected = trimmed_in_numpy([drawn(rank).numpy() for rank in range(size)], trim)
    for result in results:
        assert torch.equal(result, results[0])
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_median(size):
    results = [one.result for one in exchanged(coordinate_median(), size, put_in=drawn)]
    expected = np.median([drawn(rank).double().numpy() for rank in range(size)], axis=0)
    for result in results:
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("numel", [0, 1, (1 << 14) - 1, (1 << 14) + 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_all_sizes_and_types(numel, dtype):
    rows = [torch.randn(numel, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(5)]
    found = mean_of_middle(rows, 1)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    expected = trimmed_in_numpy([row.double().numpy() for row in rows], 1)
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=1e-6, atol=1e-6)


def test_rows_are_read_at_once_on_a_gpu():
    launches = []
    for workers in (2, 8):
        with PretendGpu() as gpu:
            rows = torch.randn(workers, 5, device="cuda").unbind()
            gpu.work.clear()
            mean_of_middle(rows, 0)
        launches.append(gpu.work.launches)
    assert launches[0] == launches[1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("exchange", [trimmed_mean(trim=1), coordinate_median()])
def test_what_one_sends_stays_between_the_others(exchange, bad):
    def put_in(rank):
        return torch.full((NUMEL,), bad) if rank == 2 else drawn(rank)

    result = exchanged(exchange, 4, put_in=put_in)[0].result
    others = torch.stack([drawn(rank) for rank in (0, 1, 3)])
    assert ((others.amin(0) <= result) & (result <= others.amax(0))).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_more_bad_ones_than_are_left_out_are_seen(bad):
    def put_in(rank):
        return torch.full((NUMEL,), bad) if rank in (1, 3) else drawn(rank)

    result = exchanged(trimmed_mean(trim=1), 4, put_in=put_in)[0].result
    assert not result.isfinite().any()


@pytest.mark.parametrize(
    "compressor",
    [cast(dtype="bfloat16"), error_feedback(compressor=cast(dtype="float16")), random_k(density=1.0)],
)
def test_dense_messages_are_combined(compressor):
    result = exchanged(coordinate_median(), 3, compressor, put_in=drawn)[0].result
    expected = np.median([drawn(rank).double().numpy() for rank in range(3)], axis=0)
    np.testing.assert_allclose(result.numpy(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("compressor", [top_k(density=0.1), quantize(bits=8)])
def test_other_messages_are_refused(compressor):
    with pytest.raises(CompositionError, match=r"which coordinate_median\(\) cannot combine: it takes dense"):
        Rule(payload=gradients(), compressor=compressor, exchange=coordinate_median())


def test_too_few_workers_are_refused():
    config = {"rules": [{"payload": "gradients", "exchange": {"trimmed_mean": {"trim": 2}}}]}
    with pytest.raises(TopologyError, match=r"of 4 worker.* it takes 5 workers or more"):
        relaxcomm.simulate(
            lambda group: relaxcomm.attach(
                torch.nn.Linear(1, 1), None, {"algorithm": config}, process_group=group
            ),
            4,
        )


def test_what_needs_a_plain_mean_is_refused():
    with pytest.raises(CompositionError, match="multiplied by a weight"):
        Rule(trigger=every_round(), payload=client_deltas(), exchange=coordinate_median())
    rule = Rule(payload=gradients(), exchange=coordinate_median())
    with pytest.raises(CompositionError, match=r"which coordinate_median.. does not return"):
        relaxcomm.Algorithm((rule,), name="x", controllers=(norm_test(rule=0, tolerance=0.5),))


def test_accumulated_gradients_are_exchanged_once():
    """A median of sums is no sum of medians."""

    def train(group):
        model = torch.nn.Linear(1, 1, bias=False)
        rule = Rule(payload=gradients(), exchange=coordinate_median())
        with relaxcomm.attach(
            model, None, relaxcomm.Algorithm((rule,), name="median"), process_group=group
        ) as engine:
            with engine.no_sync():
                (model(torch.ones(1, 1)) * (5.0, 0.0, 1.0)[group.rank()]).sum().backward()
            (model(torch.ones(1, 1)) * (0.0, 7.0, 2.0)[group.rank()]).sum().backward()
            return model.weight.grad.item()

    assert relaxcomm.simulate(train, 3) == [5.0, 5.0, 5.0]


def test_a_parameter_that_one_worker_uses_is_not_lost():
    """Which parameters are used is told by all, and not voted on."""

    def train(group):
        model = torch.nn.ModuleList([torch.nn.Linear(1, 1, bias=False) for _ in range(2)])
        rule = Rule(payload=gradients(), exchange=coordinate_median())
        algorithm = relaxcomm.Algorithm((rule,), name="median")
        with relaxcomm.attach(model, None, algorithm, process_group=group):
            used = model if group.rank() == 0 else model[:1]
            sum(one(torch.ones(1, 1)) for one in used).sum().backward()
            return model[1].weight.grad

    for gradient in relaxcomm.simulate(train, 4):
        assert gradient is not None
        assert gradient.item() == 0.0


def trained(exchange, payload, outer, *, bad):
    """The parameters after 40 exchanges, of four workers of which the last may send garbage of norm 1e6."""
    rule = {"trigger": {"every": {"steps": 2}}, "payload": payload, "exchange": exchange, "outer": outer}
    config = {"algorithm": {"rules": [rule]}, "bucket_bytes": 64}

    def train(group):
        torch.manual_seed(7)
        truth, model = torch.randn(6, 3), torch.nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(group.rank())
        with relaxcomm.attach(model, optimizer, config, process_group=group):
            for step in range(80):
                x = torch.randn(16, 6, generator=draw)
                optimizer.zero_grad()
                (model(x) - x @ truth).square().mean().backward()
                if bad and group.rank() == 3 and step % 2:
                    for parameter in model.parameters():
                        garbage = torch.randn(parameter.shape, generator=draw)
                        parameter.data += 1e6 * garbage / garbage.norm()
                optimizer.step()
        return torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    return relaxcomm.simulate(train, 4)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("payload", "outer"),
    [
        ("parameters", "average"),
        ("deltas", "average"),
        ("deltas", {"nesterov": {"lr": 0.7, "momentum": 0.5}}),
    ],
    ids=["points", "local_sgd", "diloco"],
)
def test_one_bad_worker_of_four_poisons_the_mean_alone(payload, outer):
    clean = trained("all_reduce", payload, outer, bad=False)
    for robust in ({"trimmed_mean": {"trim": 1}}, "coordinate_median"):
        assert (trained(robust, payload, outer, bad=True) - clean).norm() < 0.05 * clean.norm()
    assert (trained("all_reduce", payload, outer, bad=True) - clean).norm() > 1e3 * clean.norm()


def test_all_gather_takes_the_mean_that_this_one_bounds():
    """The control of the tests above: without a bound one worker moves every entry."""
    result = exchanged(all_reduce(), 4, put_in=lambda rank: drawn(rank) * (1e30 if not rank else 1))
    assert result[0].result.abs().median() > 1e25
