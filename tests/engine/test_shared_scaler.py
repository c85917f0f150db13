"""Several engines with one GradScaler: each closes the steps that were skipped of its own, in order."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from tests.engine.harness import in_process, on_gloo, values

ONES, ZEROS = torch.ones(8, 1), torch.zeros(8, 1)
STEPS = 8


def adversaries(world, algorithm, whose: str, at: int, updates: str, grows: bool = False):
    """A generator and a discriminator; an overflow in the loss of one, on rank 1 alone."""
    torch.manual_seed(0)
    models = {"g": nn.Linear(3, 6), "d": nn.Linear(6, 1)}
    optimizers = {name: torch.optim.SGD(one.parameters(), lr=0.1) for name, one in models.items()}
    growth = 2 if grows else 10**6
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=growth)
    draw = torch.Generator().manual_seed(3 + world.rank)
    config = {"algorithm": algorithm, "timeout_seconds": 20}
    skipped = []

    def step(name, loss, now):
        if (name, now, world.rank) == (whose, at, 1):
            loss = loss * float("inf")
        optimizers[name].zero_grad()
        scaler.scale(loss).backward()
        before = values(models[name])
        scaler.step(optimizers[name])
        if algorithm != "bsp" and (values(models[name]) == before).all():
            skipped.append((name, now))
        if updates == "each" or name == "g":
            scaler.update(1024.0 if updates == "by hand" else None)

    with (
        world.attach(models["g"], optimizers["g"], config, scaler=scaler) as first,
        world.attach(models["d"], optimizers["d"], config, scaler=scaler) as second,
    ):
        for now in range(STEPS):
            x, z = torch.randn(8, 6, generator=draw), torch.randn(8, 3, generator=draw)
            real, fake = models["d"](x), models["d"](models["g"](z).detach())
            step("d", bce(real, ONES) + bce(fake, ZEROS), now)
            step("g", bce(models["d"](models["g"](z)), ONES), now)
    steps = [engine.statistics["steps"] for engine in (first, second)]
    return steps, skipped, [values(one).tolist() for one in models.values()]


@pytest.mark.parametrize("updates", ["each", "once", "by hand"])
@pytest.mark.parametrize("whose", ["g", "d"])
@pytest.mark.parametrize("at", [2, 3, STEPS - 1])
def test_a_step_that_is_skipped_ends_in_its_turn(updates, whose, at):
    found = in_process(
        adversaries, 3, {"name": "local_sgd", "steps": 2}, whose, at, updates, updates == "each"
    )
    for rank, (steps, skipped, models) in enumerate(found):
        assert steps == [STEPS, STEPS]
        assert skipped == ([(whose, at)] if rank == 1 else [])
        assert models == found[0][2]  # closed, and so averaged


@pytest.mark.parametrize("whose", ["g", "d"])
def test_all_skip_together_where_gradients_are_exchanged(whose):
    found = in_process(adversaries, 3, "bsp", whose, 3, "once")
    assert [steps for steps, _, _ in found] == [[STEPS, STEPS]] * 3
    assert found[0][2] == found[1][2] == found[2][2]


@pytest.mark.ranks
def test_nobody_waits_for_a_skipped_step_on_gloo():
    for steps, _, _ in on_gloo(adversaries, 3, {"name": "local_sgd", "steps": 2}, "g", 3, "once"):
        assert steps == [STEPS, STEPS]


def accumulated(world, steps: int):
    """All backwards under no_sync, which an algorithm of parameters allows; an overflow on rank 1."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with world.attach(
        model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 2}}, scaler=scaler
    ) as engine:
        for step in range(steps):
            factor = float("inf") if step == 3 and world.rank == 1 else 1.0
            optimizer.zero_grad()
            for _ in range(2):
                with engine.no_sync():
                    scaler.scale(model(torch.ones(2, 3)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    return engine.statistics["steps"], engine.statistics["synchronisations"]


@pytest.mark.parametrize("steps", [4, 8])
def test_a_skip_is_seen_where_all_backwards_are_under_no_sync(steps):
    assert in_process(accumulated, 3, steps) == [(steps, steps // 2)] * 3


def in_turn(world):
    """Two optimizers of one engine with an update after each; the first one is skipped on rank 1."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen = []
    with world.attach(
        model, optimizers, {"algorithm": {"name": "local_sgd", "steps": 1}}, scaler=scaler
    ) as engine:
        for step in range(6):
            for index, (part, optimizer) in enumerate(zip(model, optimizers, strict=True)):
                factor = float("inf") if (step, index, world.rank) == (2, 0, 1) else 1.0 + world.rank
                optimizer.zero_grad()
                scaler.scale(part(torch.ones(2, 3)).sum() * factor).backward()
                scaler.step(optimizer)
                scaler.update()
            seen.append(values(model).tolist())
        return engine.statistics["steps"], seen


def test_a_step_of_two_optimizers_ends_with_the_second_where_the_first_was_skipped():
    found = in_process(in_turn, 3)
    for steps, seen in found:
        assert steps == 6
        assert seen == found[0][1]  # equal after each step, the skipped one too


def actor_and_critic(world, order: str):
    """Attached actor first, stepped in `order`; rank 0 skips both in a step after which all average."""
    torch.manual_seed(0)
    models = {"a": nn.Linear(3, 3), "c": nn.Linear(3, 1)}
    optimizers = {name: torch.optim.SGD(one.parameters(), lr=0.1) for name, one in models.items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    config = {"algorithm": {"name": "local_sgd", "steps": 2}, "timeout_seconds": 20}
    with (
        world.attach(models["a"], optimizers["a"], config, scaler=scaler) as first,
        world.attach(models["c"], optimizers["c"], config, scaler=scaler) as second,
    ):
        for step in range(6):
            loss = sum(model(torch.ones(2, 3)).square().mean() for model in models.values())
            factor = float("inf") if step == 3 and world.rank == 0 else 1.0 + world.rank
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            scaler.scale(loss * factor).backward()
            for name in order:
                scaler.step(optimizers[name])
            scaler.update()
    steps = [engine.statistics["steps"] for engine in (first, second)]
    return steps, [values(model).tolist() for model in models.values()]


@pytest.mark.parametrize("order", ["ac", "ca"])
def test_skipped_steps_end_in_the_order_in_which_engines_step(order):
    found = in_process(actor_and_critic, 3, order)
    for steps, models in found:
        assert steps == [6, 6]
        assert models == found[0][1]
