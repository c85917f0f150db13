"""Methods added from outside, through the public namespaces alone, against the references of what they are.

A compressor, two exchanges, a trigger, an outer, a topology, two payloads and two algorithms: each file
of `example_methods` is all that it took, and no file of relaxcomm knows of them.
"""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from example_methods import stochastic_cast
from example_methods.algorithms import paired_momentum, springs

import relaxcomm
from relaxcomm import primitives
from relaxcomm.config import registry
from relaxcomm.plugin import Context, Membership
from tests import references
from tests.algorithms.test_sparse_algorithms import bucket_places
from tests.engine.harness import assert_histories_agree, in_process, on_gloo, simulated_workers, train, values
from tests.models import CASES, trainable
from tests.planner.test_replayed_run import FAR, replay_of, simulated

PACKAGE = Path(__file__).parent / "example_methods"
STEPS = 24
BUCKET_BYTES = 1200  # two buckets of the toy model


@pytest.fixture
def known(monkeypatch):
    """Makes the package known by its folder, and forgets it afterwards."""
    monkeypatch.setattr(registry, "_included", [])
    registry.include(Path(__file__).parent)
    yield
    registry.algorithms.cache_clear()
    registry.primitives.cache_clear()


def test_the_package_imports_from_the_public_namespaces_only():
    modules = {
        node.module
        for path in PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relaxcomm")
    }
    assert modules == {"relaxcomm", "relaxcomm.plugin", "relaxcomm.primitives"}


@pytest.mark.slow
def test_relaxcomm_check_holds_all_of_it(known):
    found = relaxcomm.check(Path(__file__).parent)
    names = {
        "paired_momentum",
        "springs",
        "diverging_loss",
        "spring_pull",
        "heavy_ball",
        "pair_average",
        "drawn_pairs",
        "ring_of_sums",
    }
    assert {one.subject for one in found} == names | {"points_and_progress", "stochastic_cast"}
    assert [str(one) for one in found if one.fault] == []


def configured(algorithm, **more):
    config = {"algorithm": algorithm, "bucket_bytes": BUCKET_BYTES, **more}
    assert len(in_process(bucket_places, 3, config)[0]) == 2
    return config


def pairs(seed, turn, size):
    """The groups of one round: pairs, and who is left over alone."""
    ranks = list(range(size))
    random.Random(f"{seed}/{turn}").shuffle(ranks)
    return [ranks[start : start + 2] for start in range(0, size, 2)]


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("optimizer", ["plain", "adamw"])
def test_paired_momentum_equals_its_reference(known, size, optimizer):
    given = {"lr": 0.7, "momentum": 0.5, "gamma": 0.6}
    config = configured({"name": "paired_momentum", "steps": 3, "seed": 3, **given})
    workers = simulated_workers(size, optimizer)
    expected = references.noloco(workers, STEPS, 3, lambda turn: pairs(3, turn, size), **given)
    assert_histories_agree(in_process(train, size, config, STEPS, optimizer), expected)


RING = {"rules": [{"payload": "gradients", "exchange": "ring_of_sums"}]}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_partial_sums_go_round_to_the_mean(known, size):
    expected = references.bsp(simulated_workers(size), STEPS)
    assert_histories_agree(in_process(train, size, configured(RING), STEPS), expected)


def on_a_ring(world, config, steps):
    registry.include(Path(__file__).parent)
    return train(world, config, steps)


@pytest.mark.ranks
def test_partial_sums_go_round_between_processes(known):
    expected = references.bsp(simulated_workers(3), STEPS)
    assert_histories_agree(on_gloo(on_a_ring, 3, configured(RING), STEPS), expected)


@pytest.mark.parametrize(
    ("payload", "dtype"),
    [("gradients", torch.float32), ("parameters", torch.float32), ("parameters", torch.bfloat16)],
)
@pytest.mark.parametrize("delay", [0, 1])
def test_a_plan_knows_each_turn_of_a_ring(known, payload, dtype, delay):
    """Though no file of the planner knows of rings, or of sums that are wider than messages."""
    algorithm = {"rules": [{"payload": payload, "exchange": "ring_of_sums", "delay": delay}]}
    found = replay_of(algorithm, dtype=dtype)[0].run()
    seconds, sent = simulated(algorithm, "complete", FAR, dtype, 4)
    assert found.step_seconds == pytest.approx(seconds, rel=0.015)
    assert found.sent_bytes == pytest.approx(sent, rel=0.02)


def test_a_bundled_outer_moves_a_base_that_each_rank_has_to_itself(known):
    """The base is no anchor that all share: pairs pull it together, so that `sgd` can move it."""
    made = paired_momentum(steps=3, seed=3)
    bundled = replace(made.rules[0], outer=primitives.sgd(lr=1.0, momentum=made.rules[0].outer.momentum))
    expected = in_process(train, 3, configured(made), STEPS)
    found = in_process(train, 3, configured(relaxcomm.Algorithm((bundled,), name="paired_momentum")), STEPS)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_server_refuses_points_beside_a_base():
    with pytest.raises(relaxcomm.CompositionError, match="adds up what workers have moved"):
        relaxcomm.Rule(payload=paired_momentum().rules[0].payload, exchange=primitives.server(staleness=1))


@pytest.mark.parametrize("period", [1, 4])
def test_springs_equals_its_reference(known, period):
    config = configured({"name": "springs", "steps": period, "beta": 0.6})
    expected = references.easgd(simulated_workers(3), STEPS, period, 0.6)
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)


def rounded(x, noise):
    """A float32 is a bfloat16 and 16 bits more; noise of as many bits carries over in proportion."""
    bits = x.astype(np.float32).view(np.uint32) + noise.astype(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def test_gradients_with_drawn_rounding_equal_their_reference(known):
    rule = {"payload": "gradients", "compressor": {"stochastic_cast": {"seed": 5}}, "exchange": "all_gather"}
    config = configured({"rules": [rule]})
    places = in_process(bucket_places, 3, config)[0]

    def combine(rows, step, bucket):
        drawn = []
        for rank, row in enumerate(rows):
            cx = Context(step, 0, Membership(rank, 3), lambda bucket: 0.0, round=step, bucket_part=(bucket,))
            noise = torch.empty(len(row), dtype=torch.int32)
            noise.random_(1 << 16, generator=cx.generator(5, noise.device))
            drawn.append(rounded(row, noise.numpy()))
        return np.mean(drawn, axis=0)

    expected = references.coded_sgd(simulated_workers(3), STEPS, combine, places)
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)
    plain = references.bsp(simulated_workers(3), STEPS)
    assert np.abs(expected[-1] - plain[-1]).max() > 1e-4  # rounding is seen, and it is not much
    assert np.abs(expected[-1] - plain[-1]).max() < 1e-1


def observed(world, config, steps):
    """Train, tell the loss, and return the parameters after each step."""
    task = CASES["toy"]
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    history = []
    with world.attach(model, optimizer, config) as engine:
        for step in range(steps):
            loss = task.local_loss(model, step, world.rank)
            engine.observe(loss=loss.detach())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append(values(model))
    return [*history, values(model)]


def diverging_reference(workers, steps, factor, smoothing):
    history, average, fired = [], None, 0
    for step in range(steps):
        losses = np.array(
            [workers.loss(model, step, rank).item() for rank, model in enumerate(workers.models)]
        )
        workers.update(workers.gradients(step))
        if average is not None and (losses > factor * average).any():
            workers.parameters = workers.parameters.mean(axis=0)
            fired += 1
        average = losses if average is None else (1 - smoothing) * average + smoothing * losses
        history.append(workers.parameters)
    return references.finish(workers, history), fired


def test_workers_meet_when_a_loss_diverges(known):
    config = configured({"rules": [{"payload": "parameters", "exchange": "all_reduce"}]})
    config["algorithm"]["rules"][0]["trigger"] = {"diverging_loss": {"factor": 1.3, "smoothing": 0.2}}
    expected, fired = diverging_reference(simulated_workers(3), STEPS, 1.3, 0.2)
    assert 0 < fired < STEPS
    assert_histories_agree(in_process(observed, 3, config, STEPS), expected)


def test_the_same_compositions_in_python(known):
    for made, name in ((paired_momentum(steps=3, seed=3), "paired_momentum"), (springs(steps=4), "springs")):
        arguments = {"paired_momentum": {"steps": 3, "seed": 3}, "springs": {"steps": 4}}[name]
        typed = in_process(train, 3, {"algorithm": {"name": name, **arguments}}, 8)
        np.testing.assert_array_equal(in_process(train, 3, {"algorithm": made}, 8), typed)


def test_what_does_not_fit_is_refused():
    with pytest.raises(relaxcomm.CompositionError, match="power_sgd"):
        relaxcomm.Rule(
            payload=primitives.parameters(),
            compressor=primitives.power_sgd(matrix_rank=2),
            exchange=paired_momentum().rules[0].exchange,
        )
    assert relaxcomm.Rule(
        payload=primitives.parameters(),
        compressor=stochastic_cast(),
        exchange=paired_momentum().rules[0].exchange,
    )
