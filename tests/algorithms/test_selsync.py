"""SelSync against its reference, its limits, and what its vote does with awkward gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import relaxcomm.config
from relaxcomm.network import Link
from relaxcomm.primitives import relative_gradient_change
from relaxcomm.roles import Observation, agreed
from tests import references
from tests.engine.harness import (
    World,
    assert_histories_agree,
    engine_state,
    in_process,
    on_gloo,
    saved_and_loaded,
    simulated_workers,
    train,
    values,
)
from tests.models import CASES, take_step, trainable

STEPS = 40


def settings(**parameters):
    return {"algorithm": {"name": "selsync", **parameters}}


CASES_OF_IT = {
    "plain": ({"threshold": 0.0533, "window_steps": 3}, {}),
    "smoothing": ({"threshold": 0.3, "window_steps": 1, "smoothing": 0.5}, {}),
    "all": ({"threshold": 0.0533, "window_steps": 2, "agree": "all"}, {"needed": 3}),
    "majority": ({"threshold": 0.0533, "window_steps": 2, "agree": "majority"}, {"needed": 2}),
    "fraction": ({"threshold": 0.0533, "window_steps": 2, "agree": 0.5}, {"needed": 2}),
    "late": ({"threshold": 0.0533, "window_steps": 3, "delay": 1}, {}),
    "late votes": ({"threshold": 0.0533, "window_steps": 3, "vote_delay": 2}, {}),
    "late votes, late": ({"threshold": 0.0533, "window_steps": 3, "vote_delay": 1, "delay": 1}, {}),
    "gradients": ({"threshold": 0.0533, "window_steps": 3, "aggregate": "gradients"}, {}),
    "late votes on gradients": (
        {"threshold": 0.0533, "window_steps": 3, "vote_delay": 1, "aggregate": "gradients"},
        {},
    ),
}


@pytest.mark.every_other("network", "name", "optimizer", of=3)
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *((name, "momentum") for name in CASES_OF_IT),
        *(("plain", optimizer) for optimizer in ("plain", "adamw")),
        ("late votes, late", "adamw"),
    ],
)
def test_selsync_equals_its_reference(network, name, optimizer):
    parameters, more = CASES_OF_IT[name]
    told = dict(parameters)
    told.pop("agree", None)
    told["window"] = told.pop("window_steps")
    workers = simulated_workers(3, optimizer)
    expected = references.selsync(workers, STEPS, **told, **more)
    assert told["window"] < workers.fired < STEPS, "the case must hold steps of both kinds"
    assert_histories_agree(network(train, 3, settings(**parameters), STEPS, optimizer), expected)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"delay": 1, "aggregate": "gradients"}, "they cannot wait for a vote"),
        ({"delay": 2}, "longer than the 1 step.s. between two exchanges"),
    ],
)
def test_delays_that_are_refused(parameters, words):
    with pytest.raises(relaxcomm.CompositionError, match=words):
        relaxcomm.config.load(settings(**parameters))


@pytest.mark.parametrize("aggregate", ["parameters", "gradients"])
@pytest.mark.parametrize("optimizer", ["plain", "momentum"])
def test_threshold_0_is_bsp(aggregate, optimizer):
    config = settings(threshold=0.0, window_steps=1, aggregate=aggregate)
    expected = references.bsp(simulated_workers(3, optimizer), STEPS)
    assert_histories_agree(in_process(train, 3, config, STEPS, optimizer), expected)


def test_a_huge_threshold_is_local_training():
    config = settings(threshold=1e300, window_steps=1)
    expected = references.selsync(simulated_workers(3), STEPS, 1e300, window=1)
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)


def counted(world, threshold):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, settings(threshold=threshold, window_steps=2)) as engine:
        for step in range(STEPS):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        assert not engine_state(engine)["votes"]["answers"], "those of past steps are kept for nobody"
    return engine.statistics["lssr"], engine.statistics["synchronisations"]


def test_lssr_rises_with_the_threshold_and_agrees_everywhere():
    runs = [in_process(counted, 3, threshold) for threshold in (0.0, 0.0533, 0.16, 1e9)]
    assert all(len(set(run)) == 1 for run in runs)
    rates = [run[0][0] for run in runs]
    assert rates == sorted(rates)
    assert rates[0] == 0
    assert rates[-1] == (STEPS - 2) / STEPS
    assert rates[0] < rates[1] < rates[2] < rates[3]


def steep(world, rise):
    """Gradients of a constant size, which then rises or falls."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, settings(window_steps=1)) as engine:
        for step in range(4):
            take_step((1.0 if step < 3 else rise**0.5) * model.weight.sum(), optimizer)
    return engine.statistics["synchronisations"]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(("rise", "exchanges"), [(2.5, False), (2.6, True), (0.0, False)])
def test_by_default_the_threshold_means_the_same_for_every_number_of_workers(size, rise, exchanges):
    """A squared norm of 1 + 0.25 / 0.16 = 2.5625 times its average exchanges; a fall never does."""
    assert in_process(steep, size, rise) == [1 + exchanges] * size


def awkward(world, kind, steps=6, vote_delay=0):
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = settings(threshold=0.5, window_steps=1, vote_delay=vote_delay)
    with world.attach(model, optimizer, {**config, "bucket_bytes": 16}) as engine:
        for step in range(steps):
            weight = {"zero": 0.0, "constant": 1.0, "late": float(step > 3)}.get(kind, 1.0)
            loss = weight * (model.weight.sum() + 2 * model.bias.sum())
            if kind == "nan" and world.rank == 1 and step == 3:
                loss = loss * float("nan")
            take_step(loss, optimizer)
    return engine.statistics["synchronisations"]


@pytest.mark.parametrize(("kind", "synchronisations"), [("zero", 1), ("constant", 1), ("late", 3)])
def test_degenerate_gradients(kind, synchronisations):
    """All zero and constant: the first step alone; after zeros the average jumps, then doubles."""
    assert in_process(awkward, 3, kind) == [synchronisations] * 3
    assert in_process(awkward, 1, kind) == [synchronisations]


@pytest.mark.ranks
@pytest.mark.parametrize("vote_delay", [0, 1])
def test_a_nan_on_one_rank_is_an_error_on_all(vote_delay):
    with pytest.raises(Exception, match=r"step 3: .* cannot vote") as caught:
        on_gloo(awkward, 3, "nan", 6, vote_delay)
    kinds = {rank: (kind, text) for rank, (kind, text) in caught.value.errors.items()}
    assert {kind for kind, _ in kinds.values()} == {"NonFiniteError"}
    assert kinds.keys() == {0, 1, 2}
    for _, text in kinds.values():
        assert "weight on rank 1;" in text


def accumulated(world, kind):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, settings(threshold=0.0, window_steps=1)) as engine:
        loss = CASES["toy"].local_loss
        if kind != "never":
            for step in range(3):
                with engine.no_sync():
                    loss(model, 2 * step, world.rank).backward()
                loss(model, 2 * step + 1, world.rank).backward()
                if kind == "twice":
                    loss(model, 2 * step + 1, world.rank).backward()
                optimizer.step()
                optimizer.zero_grad()
        else:
            with engine.no_sync():
                loss(model, 0, world.rank).backward()
            optimizer.step()
    return values(model)


def test_accumulation_is_right_or_refused():
    first, *others = in_process(accumulated, 3, "once")
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-12)
    for kind, match in (("twice", "second synchronising backward"), ("never", "no_sync")):
        with pytest.raises(relaxcomm.UsageError, match=match):
            in_process(accumulated, 3, kind)


@pytest.mark.parametrize("vote_delay", [0, 3])
def test_a_resumed_run_votes_as_if_it_had_not_stopped(vote_delay):
    config = settings(threshold=0.2, window_steps=2, smoothing=0.3, vote_delay=vote_delay)
    whole, halves = (np.stack(in_process(saved_and_loaded, 3, config, 20, stop)) for stop in (20, 9))
    assert 5 < (whole == whole[0]).all(axis=(0, 2)).sum() < 20, "some steps, and not all, end in an average"
    np.testing.assert_allclose(halves, whole, rtol=1e-12)


def uneven(world, vote_delay):
    model, optimizer = trainable("toy", "plain")
    config = settings(threshold=0.02, window_steps=2, smoothing=0.3, vote_delay=vote_delay)
    with world.attach(model, optimizer, config) as engine, engine.join():
        for step in range(6 + 3 * world.rank):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
    return engine.statistics["steps"], values(model)


@pytest.mark.parametrize("vote_delay", [0, 1])
def test_ranks_that_ran_out_of_data_abstain(network, vote_delay):
    results = network(uneven, 3, vote_delay)
    assert [steps for steps, _ in results] == [12, 12, 12]
    for _, parameters in results:
        np.testing.assert_array_equal(parameters, results[0][1])


def alike(world, vote_delay):
    """Exchanges in uneven inputs with gradients that grow by their scale alone, and in a step behind them."""
    model, counts = torch.nn.Linear(4, 3), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1)
    config = settings(threshold=0.1, window_steps=1, smoothing=0.2, vote_delay=vote_delay)
    with world.attach(model, optimizer, config, scaler=scaler) as engine:
        for batches in (2 + 4 * (world.rank > 0), 1):
            with engine.join():
                for _ in range(batches):
                    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            counts.append(engine.statistics["synchronisations"])
    return counts


@pytest.mark.parametrize(("vote_delay", "exchanges"), [(0, [1, 1]), (1, [2, 3])])
def test_neither_no_data_nor_a_scale_is_a_change_and_late_votes_begin_anew_behind_join(vote_delay, exchanges):
    assert in_process(alike, 3, vote_delay) == [exchanges] * 3


def clock(group, vote_delay, compute):
    """Virtual seconds of ten steps in which nothing is exchanged but votes."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = settings(threshold=1e9, window_steps=1, vote_delay=vote_delay)
    with World(group.rank(), group.size(), group).attach(model, optimizer, config) as engine:
        for step in range(14):
            if step == 4:
                begun = group.time()
            group.sleep(compute)
            take_step(model(torch.ones(1, 4)).sum(), optimizer)
        seconds = group.time() - begun
        engine.close(average=False)
    return seconds


@pytest.mark.parametrize(("vote_delay", "exposed"), [(0, 1.5), (1, 0.25), (2, 0)])
def test_late_votes_hide_behind_steps(vote_delay, exposed):
    """Votes take one and a half steps; those of the next step are cast before these are waited for."""
    link = Link(latency_seconds=1.5 / 4, bytes_per_second=1e12)  # a ring of three is four messages
    found = relaxcomm.simulate(lambda group: clock(group, vote_delay, 1.0), 3, link=link)
    assert found == [pytest.approx(10 * (1.0 + exposed), rel=1e-3)] * 3


@pytest.mark.parametrize(
    ("agreement", "yes", "voters", "expected"),
    [
        ("any", 1, 3, True),
        ("any", 0, 3, False),
        ("all", 2, 3, False),
        ("all", 3, 3, True),
        ("all", 0, 0, False),
        ("majority", 2, 4, False),
        ("majority", 3, 4, True),
        (0.5, 2, 4, True),
        (0.5, 1, 4, False),
        (1.0, 3, 3, True),
        (0.1, 0, 3, False),
        (0.07, 7, 100, True),  # 0.07 * 100 is 7.000000000000001
        (0.07, 6, 100, False),
        (0.071, 7, 100, False),
    ],
)
def test_agreements(agreement, yes, voters, expected):
    assert agreed(agreement, yes, voters) is expected


def test_the_norm_is_global_and_unscaled():
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([[12.0]])]
    assert Observation(gradients).squared_norm == pytest.approx(169.0)
    assert Observation(gradients, scale=2.0).squared_norm == pytest.approx(42.25)
    assert Observation([]).squared_norm == 0.0


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 6e4), (torch.float32, 1e30)], ids=str)
def test_a_norm_is_known_where_squares_leave_the_type(dtype, size):
    gradients = [torch.full((100,), size, dtype=dtype), torch.zeros(3, dtype=dtype)]
    assert Observation(gradients).squared_norm == pytest.approx(100 * size**2, rel=1e-3)
    gradients[0][5] = torch.nan
    assert math.isnan(Observation(gradients).squared_norm)


@pytest.mark.parametrize(
    "bad", [{"threshold": -1.0}, {"threshold": 0.1, "agree": "most"}, {"threshold": 0.1, "agree": 0.0}]
)
def test_bad_parameters_are_refused(bad):
    with pytest.raises(relaxcomm.ConfigError):
        relative_gradient_change(**bad)
