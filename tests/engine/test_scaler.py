"""GradScaler with an overflow on one rank only: nobody hangs, and the step clock stays common."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm import NonFiniteError
from relaxcomm.testing import PretendGpu
from tests import references
from tests.engine.harness import World, in_process, simulated_workers, values
from tests.models import CASES

STEPS, OVERFLOW_STEP, OVERFLOW_RANK = 9, 3, 1
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "fused_sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, fused=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-3),
    "fused_adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-3, fused=True),
}


def run(
    world: World,
    algorithm,
    optimizer_name: str,
    clip: bool,
    overflow_step: int,
    steps: int,
    give_scaler: bool = True,
):
    """Parameters before each forward and at the end, the scales, and what the engine counted."""
    case = CASES["toy"]
    model = case.model(seed=0)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    history, scales = [], []
    options = {"scaler": scaler} if give_scaler else {}
    with world.attach(model, optimizer, {"algorithm": algorithm}, **options) as engine:
        for step in range(steps):
            loss = case.local_loss(model, step, world.rank)
            history.append(values(model))
            if world.rank == OVERFLOW_RANK and step == overflow_step:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e3)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        counted = engine.statistics["steps"], engine.statistics["synchronisations"]
    return [*history, values(model)], scales, counted


def reference(algorithm: str, optimizer_name: str, period: int, steps: int, overflow_step: int):
    """Rows before each step and at the end: bsp skips everywhere, local SGD on the one rank."""
    workers = simulated_workers(3)
    workers.optimizers = [OPTIMIZERS[optimizer_name](model.parameters()) for model in workers.models]
    history = []
    for step in range(steps):
        history.append(workers.parameters)
        gradients = workers.gradients(step)
        if algorithm == "bsp":
            if step != overflow_step:
                workers.update(gradients.mean(axis=0))
        else:
            everyone = workers.trained, workers.optimizers
            stepping = [r for r in range(3) if not (step == overflow_step and r == OVERFLOW_RANK)]
            workers.trained = [everyone[0][r] for r in stepping]
            workers.optimizers = [everyone[1][r] for r in stepping]
            workers.update(gradients[stepping])
            workers.trained, workers.optimizers = everyone
            if (step + 1) % period == 0:
                workers.parameters = workers.parameters.mean(axis=0)
    return [*history, np.broadcast_to(workers.parameters.mean(axis=0), workers.parameters.shape)]


def assert_equal(results, expected) -> None:
    for step, rows in enumerate(expected):
        for rank, (history, _, _) in enumerate(results):
            np.testing.assert_allclose(
                history[step], rows[rank], rtol=1e-8, atol=1e-9, err_msg=f"rank {rank}, before step {step}"
            )


@pytest.mark.every_other("network", "optimizer", "clip")
@pytest.mark.parametrize("clip", [False, True], ids=["plain", "unscale_and_clip"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bsp_skips_together(network, optimizer, clip):
    results = network(run, 3, "bsp", optimizer, clip, OVERFLOW_STEP, STEPS)
    for _, scales, (steps, _) in results:
        assert scales == [1024.0] * OVERFLOW_STEP + [512.0] * (STEPS - OVERFLOW_STEP)
        assert steps == STEPS
    assert_equal(results, reference("bsp", optimizer, 1, STEPS, OVERFLOW_STEP))


@pytest.mark.every_other("network", "optimizer", "period")
@pytest.mark.parametrize("period", [2, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_local_sgd_skips_on_the_rank_alone_and_exchanges_in_step(network, optimizer, period):
    """The skipped step, 3, is one that ends with an exchange."""
    results = network(run, 3, {"name": "local_sgd", "steps": period}, optimizer, False, OVERFLOW_STEP, STEPS)
    for rank, (_, scales, counted) in enumerate(results):
        assert scales[-1] == (512.0 if rank == OVERFLOW_RANK else 1024.0)
        assert counted == (STEPS, STEPS // period)
    assert_equal(results, reference("local_sgd", optimizer, period, STEPS, OVERFLOW_STEP))


@pytest.mark.every_other("network", "algorithm", "optimizer")
@pytest.mark.parametrize("optimizer", ["sgd", "fused_sgd"])
@pytest.mark.parametrize("algorithm", ["bsp", "local_sgd"])
def test_an_overflow_in_the_last_step_does_not_hang_close(network, algorithm, optimizer):
    config = "bsp" if algorithm == "bsp" else {"name": "local_sgd", "steps": 2}
    results = network(run, 3, config, optimizer, False, 5, 6)
    ends = [history[-1] for history, _, _ in results]
    np.testing.assert_allclose(ends[0], reference(algorithm, optimizer, 2, 6, 5)[-1][0], rtol=1e-8, atol=1e-9)
    for end in ends[1:]:
        np.testing.assert_array_equal(end, ends[0])


def test_the_momentum_of_a_skipped_first_step_begins_at_zero(monkeypatch):
    """torch's fused SGD keeps what it found in memory."""
    monkeypatch.setattr(torch, "empty_like", lambda *of, **how: torch.full_like(*of, 7.0, **how))
    results = in_process(run, 3, {"name": "local_sgd", "steps": 2}, "fused_sgd", False, 0, STEPS)
    assert_equal(results, reference("local_sgd", "sgd", 2, STEPS, 0))


@pytest.mark.parametrize("optimizer", ["sgd", "fused_sgd"])
def test_no_overflow_at_all_equals_training_without_a_scaler(network, optimizer):
    results = network(run, 3, "bsp", optimizer, True, -1, STEPS)
    assert_equal(results, reference("bsp", optimizer, 1, STEPS, -1))


def autocast(world: World, algorithm, low_precision: bool):
    """A float32 model under bfloat16 autocast; each rank also trains plain copies of all workers."""
    case = CASES["mlp"]
    period = None if algorithm == "bsp" else algorithm["steps"]
    copies = [case.model(seed=0) for _ in range(world.size)]
    context = torch.autocast("cpu", torch.bfloat16) if low_precision else nullcontext()
    optimizers = [torch.optim.SGD(copy.parameters(), lr=0.1) for copy in copies]
    model = case.model(seed=world.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for step in range(8):
            for rank, trained in [*enumerate(copies), (world.rank, model)]:
                inputs, targets = case.data(step, rank)
                with context:
                    loss = case.loss(trained(inputs).float(), targets)
                loss.backward()
            for same in zip(*(copy.parameters() for copy in copies), strict=True) if period is None else ():
                mean = sum(parameter.grad for parameter in same) / world.size
                for parameter in same:
                    parameter.grad = mean.clone()
            for each in [*optimizers, optimizer]:
                each.step()
                each.zero_grad()
            if period is not None and (step + 1) % period == 0:
                with torch.no_grad():
                    for same in zip(*(copy.parameters() for copy in copies), strict=True):
                        mean = sum(same) / world.size
                        for parameter in same:
                            parameter.copy_(mean)
        found, expected = values(model), values(copies[world.rank])
        engine.close(average=False)
    return found, expected


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 3}], ids=["bsp", "local_sgd"])
def test_autocast_equals_plain_workers_bit_for_bit_on_two_ranks(network, algorithm):
    with_autocast = network(autocast, 2, algorithm, True)
    without = network(autocast, 2, algorithm, False)
    for (found, expected), (full, _) in zip(with_autocast, without, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert np.abs(found - full).max() > 1e-4  # autocast really took part


@pytest.mark.parametrize("optimizer", ["sgd", "fused_sgd"])
def test_gradients_that_are_late_at_the_end_are_unscaled(optimizer):
    """The last ones are applied by close(), without a scaler's step."""
    results = in_process(run, 3, {"name": "delayed_sgd", "delay": 2}, optimizer, False, STEPS, STEPS)
    workers = simulated_workers(3)
    workers.optimizers = [OPTIMIZERS[optimizer](model.parameters()) for model in workers.models]
    expected = references.delayed_gradients(workers, STEPS, 2)
    for history, _, _ in results:
        np.testing.assert_allclose(history[-1], expected[-1][0], rtol=1e-8, atol=1e-9)


def joined_after_a_skip(world, algorithm, batches):
    """Rank 1 skips its last step before join(), in which the others exchange."""
    case = CASES["toy"]
    model = case.model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with world.attach(model, optimizer, {"algorithm": algorithm}, scaler=scaler) as engine:

        def train(step, factor=1.0):
            scaler.scale(case.local_loss(model, step, world.rank) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        train(0)
        train(1, float("inf") if world.rank == 1 else 1.0)
        with engine.join():
            for step in range(batches[world.rank]):
                train(2 + step)
        return values(model), engine.statistics["steps"]


@pytest.mark.parametrize("batches", [(2, 3, 1), (2, 0, 1)])
@pytest.mark.parametrize(
    "algorithm", [{"name": "local_sgd", "steps": 2}, "d_psgd"], ids=["local_sgd", "d_psgd"]
)
def test_a_step_that_is_skipped_before_join_ends_before_it(algorithm, batches):
    results = in_process(joined_after_a_skip, 3, algorithm, batches)
    for end, steps in results:
        assert steps == 2 + max(batches)
        np.testing.assert_array_equal(end, results[0][0])


def frozen_after_a_skip(world, *, calls: bool):
    """The first layer is frozen in the step that follows one which rank 1 has skipped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    parts, whole = list(model), model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with world.attach(
        model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 2}}, scaler=scaler
    ) as engine:
        for step in range(6):
            model[0].requires_grad_(step < 3)
            x = torch.ones(2, 3)
            for part in [whole] if calls or step < 3 else parts:
                x = part(x)
            factor = float("inf") if step == 2 and world.rank == 1 else 1.0
            scaler.scale(x.square().mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        watched = len(model[0]._forward_pre_hooks)
    return engine.statistics["steps"], watched, values(model).tolist()


@pytest.mark.parametrize("calls", [True, False], ids=["called", "parts"])
def test_a_layer_may_be_frozen_after_a_skipped_step(calls):
    found = in_process(partial(frozen_after_a_skip, calls=calls), 3)
    for steps, watched, parameters in found:
        assert steps == 6
        assert watched == (not calls)  # parts are followed only where the model is not called
        assert parameters == found[0][2]


def test_on_a_gpu_who_skips_a_step_learns_in_it_of_what_was_not_finite_before(monkeypatch):
    """As the others do just before theirs; they ask all ranks on which one it arose."""
    monkeypatch.setattr("relaxcomm.network.in_process.tensors_of", lambda operation: [])

    def train(group, begun):
        with gpu.in_thread():
            model = nn.Linear(4, 2).to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
            with World(group.rank(), 3, group).attach(
                model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 1}}, scaler=scaler
            ):
                for step in range(9):
                    begun.append(step)
                    if (step, group.rank()) == (3, OVERFLOW_RANK):
                        model.weight.data.fill_(math.nan)  # so that it skips all steps from here on
                    scaler.scale(model(torch.ones(2, 4, device="cuda")).square().mean()).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()

    def told(group):
        begun = []
        with pytest.raises(NonFiniteError, match=r"step 3: NaN .* in parameter weight on rank 1"):
            train(group, begun)
        return begun[-1]

    with PretendGpu() as gpu:
        assert relaxcomm.simulate(told, 3) == [5, 6, 5], "who has skipped a step ends it in the next forward"
