"""The sparse algorithms against references, over 32 steps, 3 ranks and 2 buckets or the whole model."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import torch

import relaxcomm
from tests import references
from tests.engine.harness import (
    assert_histories_agree,
    engine_state,
    in_process,
    simulated_workers,
    train,
    values,
)
from tests.models import CASES, take_step, trainable

STEPS = 32
SIZE = 225  # of the toy model


def largest(density):
    def select(u, step, bucket):
        k = max(int(density * len(u)), 1)
        return np.argsort(np.argsort(-np.abs(u), kind="stable"), kind="stable") < k

    return select


def gaussian(density, fallback=True):
    def select(u, step, bucket):
        k = max(int(density * len(u)), 1)
        threshold = u.mean() + u.std(ddof=1) * NormalDist().inv_cdf(1 - density / 2)
        for _ in range(3):
            mask = np.abs(u) > threshold
            if mask.sum() < 2 * k / 3:
                threshold *= 0.5
            elif mask.sum() > 4 * k / 3:
                threshold *= 1.5
            else:
                break
        found, room = np.flatnonzero(mask), -(-4 * k // 3)
        if len(found) > room:
            found = np.argsort(-np.abs(u))[:room]
        if fallback and len(found) < 2 * k / 3:
            found = np.argsort(-np.abs(u))[:k]
        mask = np.zeros(len(u), dtype=bool)
        mask[found] = True
        return mask

    return select


def rules(compressor, exchange="all_gather"):
    return {"rules": [{"payload": "gradients", "compressor": compressor, "exchange": exchange}]}


def bucket_places(world, config):
    """Where each bucket's entries lie among all parameters, in the bucket's order (that of backward)."""
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, config) as engine:
        CASES["toy"].local_loss(model, 0, world.rank).backward()
        layout = engine_state(engine)["layout"]
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    return [np.concatenate([starts[n] + np.arange(sizes[n]) for n in names]) for names in layout]


@pytest.mark.parametrize("optimizer", ["plain", "momentum"])
@pytest.mark.parametrize(("name", "select"), [("topk_sgd", largest), ("gaussiank_sgd", gaussian)])
@pytest.mark.parametrize("bucket_bytes", [64, 1 << 20])
def test_by_name_over_the_whole_model(name, select, optimizer, bucket_bytes):
    """The size of buckets does not change what is selected."""
    config = {"algorithm": {"name": name, "density": 0.05}, "bucket_bytes": bucket_bytes}
    places = in_process(bucket_places, 3, config)[0]
    assert [len(place) for place in places] == [SIZE]
    expected = references.sparse_sgd(simulated_workers(3, optimizer), STEPS, select(0.05), places)
    assert_histories_agree(in_process(train, 3, config, STEPS, optimizer), expected)


def test_the_published_rule_of_gaussian_k():
    config = {"algorithm": {"name": "gaussiank_sgd", "density": 0.02, "fallback": None}}
    places, select = [np.arange(SIZE)], gaussian(0.02, fallback=False)
    expected = references.sparse_sgd(simulated_workers(3), STEPS, select, places)
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)


@pytest.mark.parametrize(("name", "select"), [("top_k", largest), ("gaussian_k", gaussian)])
def test_by_bucket(name, select):
    compressor = {"error_feedback": {name: {"density": 0.05, "scope": "bucket"}}}
    config = {"algorithm": rules(compressor), "bucket_bytes": 1200}
    places = in_process(bucket_places, 3, config)[0]
    assert len(places) >= 2
    assert sum(map(len, places)) == SIZE
    expected = references.sparse_sgd(simulated_workers(3), STEPS, select(0.05), places)
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)


def test_dgc_with_an_exact_choice():
    expected = references.sparse_sgd(
        simulated_workers(3, "plain"), STEPS, largest(0.05), [np.arange(SIZE)], momentum=0.9
    )
    compressor = {"momentum_correction": {"top_k": {"density": 0.05}}}
    assert_histories_agree(in_process(train, 3, {"algorithm": rules(compressor)}, STEPS, "plain"), expected)
    by_name = {"algorithm": {"name": "dgc", "density": 0.05}}
    sampled = {"momentum_correction": {"dgc": {"density": 0.05}}}
    one, other = (in_process(train, 3, c, STEPS, "plain") for c in (by_name, {"algorithm": rules(sampled)}))
    np.testing.assert_array_equal(one[0][-1], other[0][-1])


def test_dgc_wants_an_optimizer_without_momentum():
    with pytest.raises(relaxcomm.CompositionError, match="momentum=0"):
        in_process(train, 3, {"algorithm": "dgc"}, 1, "momentum")
    with pytest.raises(relaxcomm.CompositionError, match="betas"):
        in_process(train, 3, {"algorithm": "dgc"}, 1, "adamw")


def test_randomk_sgd_sends_the_same_entries_everywhere():
    """With density 1 it is bsp; below, the replicas stay equal and nothing is lost (next test)."""
    expected = references.bsp(simulated_workers(3), STEPS)
    config = {"algorithm": {"name": "randomk_sgd", "density": 1.0}}
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)
    found = in_process(train, 3, {"algorithm": {"name": "randomk_sgd", "density": 0.1}}, STEPS)
    for history in found[1:]:
        np.testing.assert_array_equal(history[-1], found[0][-1])


def conserved(world, algorithm, steps):
    """All gradients that this rank has made, all that were applied, and what it still keeps."""
    model = CASES["toy"].model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    made, applied = 0.0, 0.0
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 300}) as engine:
        for step in range(steps):
            loss = CASES["toy"].local_loss(model, step, world.rank)
            own = torch.autograd.grad(loss, list(model.parameters()))
            made = made + torch.cat([g.flatten() for g in own])
            CASES["toy"].local_loss(model, step, world.rank).backward()
            applied = applied + torch.cat([p.grad.flatten() for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
        state = engine_state(engine)
    order = [name for names in state["layout"] for name in names]
    flat = torch.cat([slots["compressor"]["residual"] for _, _, slots in state["slots"]])
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    parts = dict(zip(order, flat.split([sizes[name] for name in order]), strict=True))
    return made, applied, torch.cat([parts[name] for name in sizes])


@pytest.mark.parametrize("name", ["topk_sgd", "gaussiank_sgd", "randomk_sgd"])
def test_nothing_is_lost_over_a_run(name):
    found = in_process(conserved, 3, {"name": name, "density": 0.02}, 30)
    made = sum(made for made, _, _ in found)
    kept = sum(kept for _, _, kept in found)
    torch.testing.assert_close(3 * found[0][1] + kept, made, rtol=1e-9, atol=1e-9)
    assert float(kept.abs().max()) > 0


@pytest.mark.parametrize(
    ("chooser", "exchange"), [("top_k", "all_gather"), ("random_k", "all_gather"), ("random_k", "all_reduce")]
)
def test_a_chain_that_loses_nothing_more_trains_as_its_first_part(chooser, exchange):
    """Over buckets of their own: the toy model is in float64, so that casting to it changes nothing."""
    first = {chooser: {"density": 0.1, "scope": "bucket"}}
    one, other = (
        in_process(train, 3, {"algorithm": rules(compressor, exchange), "bucket_bytes": 1200}, STEPS)
        for compressor in (
            {"error_feedback": first},
            {"error_feedback": {"chain": [first, {"cast": {"dtype": "float64"}}]}},
        )
    )
    for found, expected in zip(other, one, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)  # sums may come in another order
        np.testing.assert_array_equal(found[-1], other[0][-1])


def compressed_selsync(world, compressor):
    model, optimizer = trainable("toy", "plain")
    algorithm = {"name": "selsync", "threshold": 0.0, "window_steps": 1, "compressor": compressor}
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for step in range(20):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        engine.close(average=False)
    return values(model), engine.statistics["bytes_sent"]


def test_selsync_takes_a_compressor():
    dense = in_process(compressed_selsync, 3, None)
    exact = in_process(compressed_selsync, 3, {"error_feedback": {"top_k": {"density": 1.0}}})
    sparse = in_process(compressed_selsync, 3, {"error_feedback": {"top_k": {"density": 0.05}}})
    np.testing.assert_allclose(exact[0][0], dense[0][0], rtol=1e-9)
    for found in sparse[1:]:
        np.testing.assert_array_equal(found[0], sparse[0][0])
    assert sparse[0][1] < 0.6 * dense[0][1]


def pushed(world, compressor):
    algorithm = {"name": "ssp", "staleness": 0, "compressor": compressor}
    return train(world, {"algorithm": algorithm}, 20, "plain")


def test_ssp_takes_a_compressor():
    """Each shard's entries are chosen on their own; with all of them it is bsp."""
    expected = references.bsp(simulated_workers(3, "plain"), 20)
    whole = {"error_feedback": {"top_k": {"density": 1.0, "scope": "bucket"}}}
    assert_histories_agree(in_process(pushed, 3, whole), expected)
    sparse = in_process(pushed, 3, {"error_feedback": {"top_k": {"density": 0.1, "scope": "bucket"}}})
    for history in sparse[1:]:
        np.testing.assert_array_equal(history[-1], sparse[0][-1])
