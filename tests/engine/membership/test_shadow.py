"""After join() all go on alike: who has finished early takes over more than the model."""

from __future__ import annotations

import warnings
from collections import deque

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import ConfigWarning, NonFiniteError
from relaxcomm.network import in_process as in_process_network
from relaxcomm.testing import PretendGpu
from tests.engine.harness import World, in_process, on_gloo, values
from tests.models import CASES, make_optimizer, take_step, trainable

BATCHES = (2, 5, 3)
EPOCHS = 2


def step(world: World, model, optimizers, number: int) -> None:
    CASES["toy"].local_loss(model, number, world.rank).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def after_join(world: World, algorithm, optimizer: str, batches=BATCHES):
    """Parameters after each of some steps that all take, after epochs in which they do not."""
    model, history = CASES["toy"].model(seed=world.rank), []
    made = OPTIMIZERS[optimizer](model)
    optimizers = made if isinstance(made, list) else [made]
    with world.attach(model, made, {"algorithm": algorithm}) as engine:
        for epoch in range(EPOCHS):
            with engine.join():
                for number in range(batches[world.rank]):
                    step(world, model, optimizers, 100 * epoch + number)
        for number in range(4):
            step(world, model, optimizers, 1000 + number)
            history.append(values(model))
        engine.close(average=False)
    return history


def two_optimizers(model):
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    return [torch.optim.AdamW(weights, lr=0.01), torch.optim.SGD(biases, lr=0.05, momentum=0.9)]


OPTIMIZERS = {
    "momentum": lambda model: make_optimizer("momentum", model),
    "adamw": lambda model: make_optimizer("adamw", model),
    "one by one": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), foreach=False),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.01),
    "nadam": lambda model: torch.optim.NAdam(model.parameters(), lr=0.01),
    "rprop": lambda model: torch.optim.Rprop(model.parameters(), lr=0.01),
    "several": two_optimizers,
}


def assert_equal(ranks) -> None:
    first, *others = ranks
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("batches", [BATCHES, (0, 4, 2)], ids=["apart", "one without a batch"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_replicas_stay_equal_after_it(optimizer, batches):
    assert_equal(in_process(after_join, 3, "bsp", optimizer, batches))


GRADIENTS_FIRST = {"name": "post_local_sgd", "after_steps": 100, "steps": 2}


@pytest.mark.parametrize("algorithm", [{"name": "topk_sgd", "density": 0.5}, "delayed_sgd", GRADIENTS_FIRST])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_so_they_do_with_other_rules_of_gradients(algorithm, optimizer):
    assert_equal(in_process(after_join, 3, algorithm, optimizer))


@pytest.mark.ranks
def test_replicas_stay_equal_between_processes():
    assert_equal(on_gloo(after_join, 3, "bsp", "several"))


def divided(world: World):
    rules = [
        {"payload": "gradients", "exchange": "all_reduce", "select": "2.*"},
        {"trigger": {"every": {"steps": 2}}, "payload": "parameters", "exchange": "all_reduce"}
        | {"select": ["0.*", "4.*"]},
    ]
    model, optimizer = trainable("toy", "momentum")
    with world.attach(model, optimizer, {"algorithm": {"rules": rules}}) as engine:
        with engine.join():
            for number in range(BATCHES[world.rank]):
                step(world, model, [optimizer], number)
        engine.close(average=False)
    return [optimizer.state[one[0].weight]["momentum_buffer"] for one in ((model[2:]), model)]


def test_only_what_rules_keep_equal_is_taken_over():
    """Local steps have a momentum of their own."""
    first, *others = in_process(divided, 3)
    for kept, own in others:
        torch.testing.assert_close(kept, first[0], rtol=0, atol=0)
        assert not torch.equal(own, first[1])


def states(world: World):
    """What the optimizer holds before and after the end of join()."""
    model, optimizer = trainable("toy", "adamw")
    with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
        with engine.join():
            for number in range(BATCHES[world.rank]):
                step(world, model, [optimizer], number)
            before = {p: {k: v.clone() for k, v in optimizer.state[p].items()} for p in model.parameters()}
            held = {p: dict(optimizer.state[p]) for p in model.parameters()}
        same = all(optimizer.state[p][name] is held[p][name] for p in held for name in held[p])
        return [before[p] for p in before], [optimizer.state[p] for p in before], same


def test_they_are_those_of_who_trained_longest():
    """In the same memory, to which a recorded graph may point."""
    ranks = in_process(states, 3)
    for _, after, same in ranks:
        assert same
        for found, expected in zip(after, ranks[1][0], strict=True):
            assert found.keys() == expected.keys()
            for name, value in found.items():
                torch.testing.assert_close(value, expected[name], rtol=0, atol=0)


def slow_momentum(world: World):
    """Parameters after exchanges whose rate moves with the step, which shadows do not follow."""
    model, ends = CASES["toy"].model(), []
    optimizer = make_optimizer("plain", model)

    def train(number: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 * 0.9**engine.step
        step(world, model, [optimizer], number)

    with world.attach(model, optimizer, {"algorithm": {"name": "slowmo", "steps": 2}}) as engine:
        for epoch in range(EPOCHS):
            with engine.join():
                for number in range((2, 6, 4)[world.rank]):
                    train(100 * epoch + number)
        for number in range(6):
            train(1000 + number)
            if engine.step % 2 == 0:
                ends.append(values(model))
        engine.close(average=False)
    return ends


def test_what_outers_remember_is_that_of_who_trained_longest():
    assert_equal(in_process(slow_momentum, 3))


def scaled(world: World):
    model = CASES["mlp"].model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    with world.attach(model, optimizer, {"algorithm": "bsp"}, scaler=scaler) as engine:
        for batches in ((0, 5, 2)[world.rank], 2):
            with engine.join():
                for number in range(batches):
                    scaler.scale(CASES["mlp"].local_loss(model, number, world.rank)).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
    return np.append(values(model), scaler.get_scale())


def test_a_scaler_goes_on_from_the_same_scale():
    ranks = in_process(scaled, 3)
    assert_equal(ranks)
    assert ranks[0][-1] == 8 * 2**3


class Remembers(torch.optim.SGD):
    """Keeps what is no tensor."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("norms", deque()).append(parameter.grad.norm())
        return super().step(closure)


def test_what_cannot_be_sent_is_said():
    def train(world: World):
        model = CASES["toy"].model()
        optimizer = Remembers(model.parameters(), lr=0.1, momentum=0.9)
        with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine, engine.join():
            for number in range(BATCHES[world.rank]):
                step(world, model, [optimizer], number)
        return len(optimizer.state[model[0].weight]["norms"])

    with pytest.warns(ConfigWarning, match=r"after join\(\).*keep their own norms"):
        assert in_process(train, 3) == list(BATCHES)


def test_nothing_is_said_where_all_have_as_many_batches():
    def train(world: World):
        model = CASES["toy"].model()
        optimizer = Remembers(model.parameters(), lr=0.1)
        with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine, engine.join():
            step(world, model, [optimizer], 0)

    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfigWarning)
        in_process(train, 3)


def test_counts_of_steps_stay_on_the_host(monkeypatch):
    monkeypatch.setattr(in_process_network, "tensors_of", lambda operation: [])  # which it refuses on a GPU

    def train(group):
        with gpu.in_thread():
            model = torch.nn.Linear(4, 2).to("cuda")
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            world = World(group.rank(), 3, group)
            with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine, engine.join():
                for _ in range((0, 3, 1)[world.rank]):
                    take_step(model(torch.ones(2, 4, device="cuda")).square().mean(), optimizer)
            state = optimizer.state[model.weight]
            return state["step"].device.type, state["step"].item(), state["exp_avg"].tolist()

    with PretendGpu() as gpu:
        first, *others = relaxcomm.simulate(train, 3)
    assert first[:2] == ("cpu", 3.0)
    assert all(other == first for other in others)


def test_what_was_not_finite_on_a_gpu_is_an_error_of_who_follows_too(monkeypatch):
    """It comes two steps late, and all ranks ask each other on which one it arose."""
    monkeypatch.setattr(in_process_network, "tensors_of", lambda operation: [])

    def train(group):
        with gpu.in_thread():
            model = torch.nn.Linear(4, 2).to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            world = World(group.rank(), 3, group)
            with world.attach(model, optimizer, {"algorithm": "topk_sgd"}) as engine, engine.join():
                for number in range((1, 9, 9)[world.rank]):
                    factor = float("nan") if (number, world.rank) == (2, 2) else 1.0
                    take_step(factor * model(torch.ones(2, 4, device="cuda")).square().mean(), optimizer)

    def told(group):
        with pytest.raises(NonFiniteError, match=r"step 2: NaN .* on rank 2"):
            train(group)

    with PretendGpu() as gpu:
        relaxcomm.simulate(told, 3)
