"""Several optimizers make one step: bit for bit what one with all their groups does."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import CompositionError, UsageError
from tests.engine.harness import World, engine_state, in_process, on_gloo, values
from tests.models import CASES

STEPS = 14
PLAIN = {"lr": 0.05}
MOMENTUM = {"lr": 0.05, "momentum": 0.9}
ALGORITHMS: dict[str, tuple[Any, dict[str, float]]] = {
    "bsp": ("bsp", MOMENTUM),
    "local_sgd": ({"name": "local_sgd", "steps": 3}, MOMENTUM),
    "late local_sgd": ({"name": "local_sgd", "steps": 3, "delay": 2}, MOMENTUM),
    "slowmo": ({"name": "slowmo", "steps": 4}, MOMENTUM),
    "diloco": ({"name": "diloco", "steps": 4}, MOMENTUM),
    "streaming_diloco": ({"name": "streaming_diloco", "steps": 6}, MOMENTUM),
    "qadam": ({"name": "qadam", "warmup_steps": 4}, PLAIN),
    "demo": ("demo", PLAIN),
    "topk_sgd": ({"name": "topk_sgd", "density": 0.1}, MOMENTUM),
    "dgc": ({"name": "dgc", "density": 0.1}, PLAIN),
    "delayed_sgd": ("delayed_sgd", MOMENTUM),
    "d_psgd": ("d_psgd", MOMENTUM),
    "selsync": ("selsync", MOMENTUM),
    "auto": ("auto", MOMENTUM),
}


class Loop:
    """Trains the toy model; its first layer and the rest have rates of their own."""

    def __init__(
        self, world: World, settings: dict[str, Any], options: dict[str, float], several: bool
    ) -> None:
        self.world, self.settings = world, settings
        self.model = CASES["toy"].model(seed=world.rank)
        first, *rest = self.model.children()
        groups = [
            {"params": list(first.parameters()), "lr": 0.02},
            {"params": [p for one in rest for p in one.parameters()]},
        ]
        made = [[one] for one in groups] if several else [groups]
        self.optimizers = [torch.optim.SGD(one, **options) for one in made]
        self.history: list[Any] = []
        self.begin()

    def begin(self) -> None:
        self.engine = self.world.attach(
            self.model, self.optimizers if len(self.optimizers) > 1 else self.optimizers[0], self.settings
        )

    def train(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            CASES["toy"].local_loss(self.model, step, self.world.rank).backward()
            for one in self.optimizers[:: 1 - 2 * (step % 2)]:  # in any order
                one.step()
            for one in self.optimizers:
                one.zero_grad()
            self.history.append(values(self.model))

    def finish(self) -> list[Any]:
        counted = self.engine.statistics["steps"], self.engine.statistics["synchronisations"]
        self.engine.close()
        return [*self.history, values(self.model), np.array(counted)]


def run(world: World, settings, options, several: bool):
    loop = Loop(world, settings, options, several)
    loop.train(0, STEPS)
    return loop.finish()


def assert_same(one, several) -> None:
    for first, second in zip(one, several, strict=True):
        for mine, theirs in zip(first, second, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.every_other("name")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_optimizers_equal_one_of_two_groups(name):
    algorithm, options = ALGORITHMS[name]
    assert_same(*(in_process(run, 3, {"algorithm": algorithm}, options, many) for many in (False, True)))


@pytest.mark.ranks
def test_on_gloo():
    settings = {"algorithm": ALGORITHMS["slowmo"][0]}
    assert_same(*(on_gloo(run, 3, settings, MOMENTUM, many) for many in (False, True)))


def switching(world: World, several: bool):
    """From replicas that differ to equal ones: all optimizers' moments are averaged."""
    loop = Loop(world, {"algorithm": {"name": "local_sgd", "steps": 5}}, MOMENTUM, several)
    loop.train(0, 7)
    loop.engine.switch("bsp")
    moments = [
        optimizer.state[p]["momentum_buffer"].numpy().copy()
        for p in loop.model.parameters()
        for optimizer in loop.optimizers
        if p in optimizer.state
    ]
    loop.train(7, STEPS)
    return [*loop.finish(), *moments]


def test_a_switch_takes_the_moments_of_all():
    one, several = (in_process(switching, 3, many) for many in (False, True))
    assert_same(one, several)
    np.testing.assert_array_equal(several[0][-1], several[2][-1])


def resumed(world: World, restarts: bool):
    loop = Loop(world, {"algorithm": {"name": "slowmo", "steps": 4}}, MOMENTUM, several=True)
    loop.train(0, 6)
    if restarts:
        saved = loop.engine.state_dict()
        kept = [value.clone() for value in loop.model.state_dict().values()]
        loop.engine.close(average=False)
        loop.begin()
        loop.model.load_state_dict(dict(zip(loop.model.state_dict(), kept, strict=True)))
        loop.engine.load_state_dict(saved)
    loop.train(6, STEPS)
    return loop.finish()


def test_a_run_is_resumed():
    assert_same(*(in_process(resumed, 3, restarts) for restarts in (False, True)))


def clients(world: World, several: bool):
    """Each client has its own state of every optimizer."""
    inputs, targets = CASES["toy"].data(0, 0)
    data = torch.utils.data.TensorDataset(inputs.repeat(6, 1), targets.repeat(6, 1))
    settings = {"algorithm": {"name": "fedavg", "clients": 6}}
    loop = Loop(world, settings, MOMENTUM, several)
    loader = loop.engine.loader(data, batch_size=4)
    for _ in range(2):
        for x, y in loader:
            torch.nn.functional.mse_loss(loop.model(x), y).backward()
            for one in loop.optimizers:
                one.step()
                one.zero_grad()
    state = engine_state(loop.engine)["client_states"]
    held = [
        value["momentum_buffer"].numpy()
        for _, states in sorted(state.items())
        for _, value in sorted(states.items())
    ]
    return [*loop.finish(), *held, np.array([len(state), len(held)])]


def test_clients_have_states_of_each():
    one, several = (in_process(clients, 3, many) for many in (False, True))
    assert_same(one, several)
    assert several[0][-1].min() > 0


def scaled(world: World, overflow: str | None, algorithm):
    """One rank's gradients of one optimizer overflow: that one is skipped, the other steps."""
    loop = Loop(world, {"algorithm": "bsp"}, MOMENTUM, several=True)
    loop.engine.close()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    steps = []
    with world.attach(loop.model, loop.optimizers, {"algorithm": algorithm}, scaler=scaler) as engine:
        for step in range(7):
            scaler.scale(CASES["toy"].local_loss(loop.model, step, world.rank)).backward()
            if overflow and step == 3 and world.rank == 1:
                layer = loop.model[0] if overflow == "first" else loop.model[2]
                layer.weight.grad.fill_(float("inf"))
            for one in loop.optimizers:
                scaler.step(one)
            scaler.update()
            steps.append(engine.statistics["steps"])
            for one in loop.optimizers:
                one.zero_grad()
        assert scaler.get_scale() == (512.0 if overflow and world.rank == 1 else 1024.0)
    return steps, values(loop.model)


@pytest.mark.parametrize("overflow", ["first", "last", None])
def test_a_scaler_may_skip_one_of_them(overflow):
    local = {"name": "local_sgd", "steps": 4}
    found = in_process(scaled, 3, overflow, local)
    for rank, (steps, last) in enumerate(found):
        expected = list(range(1, 8))
        if overflow == "last" and rank == 1:
            expected[3] = 3  # closed by the forward that follows
        assert steps == expected
        np.testing.assert_array_equal(last, found[0][1])


def test_one_that_steps_twice_before_the_other_is_an_error():
    model = CASES["toy"].model()
    slow, fast = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))
    with relaxcomm.attach(model, [slow, fast], "local_sgd") as engine:
        for step in range(2):
            CASES["toy"].local_loss(model, step, 0).backward()
            fast.step()
            with pytest.raises(UsageError, match="in the middle of step"):
                engine.switch("bsp")
            slow.step()
        assert engine.statistics["steps"] == 2
        CASES["toy"].local_loss(model, 2, 0).backward()
        fast.step()
        CASES["toy"].local_loss(model, 3, 0).backward()
        with pytest.raises(UsageError, match=r"SGD steps again in step 2, before SGD has.*equally often"):
            fast.step()


def a_backward_each(losses, no_sync, with_last=True):
    """The second optimizer's gradients are made after the first has stepped, at first under no_sync()."""
    model = CASES["toy"].model()
    parts = list(model.children())
    first, second = (torch.optim.SGD(part.parameters(), **MOMENTUM) for part in (parts[0], parts[2]))
    yield model, [first, second]
    for step in range(3):
        losses(model, 3 * step).backward()
        first.step()
        model.zero_grad()
        with no_sync():
            losses(model, 3 * step + 1).backward()
        if with_last:
            losses(model, 3 * step + 2).backward()
        second.step()
        model.zero_grad()
    yield values(model)


def in_turns(world: World, with_last):
    engines = []
    local_loss = partial(CASES["toy"].local_loss, rank=world.rank)
    loop = a_backward_each(local_loss, lambda: engines[0].no_sync(), with_last)
    engines.append(world.attach(*next(loop), {"algorithm": "bsp", "bucket_bytes": 500}))
    with engines[0]:
        return next(loop)


def test_gradients_made_after_the_first_has_stepped_are_exchanged_too():
    def mean_loss(model, step):
        return sum(CASES["toy"].local_loss(model, step, rank) for rank in range(3)) / 3

    *_, expected = a_backward_each(mean_loss, nullcontext)
    for found in in_process(in_turns, 3, True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_gradients_that_the_second_has_made_under_no_sync_alone_are_refused():
    with pytest.raises(UsageError, match=r"optimizer.step\(\) after backward under no_sync\(\) only"):
        in_process(in_turns, 3, False)


@pytest.mark.parametrize("to_none", [True, False])
def test_the_second_may_step_without_gradients_after_something_ran_under_no_sync(to_none):
    def train(world: World):
        model = CASES["toy"].model()
        parts = list(model.children())
        first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (parts[0], parts[2]))
        with world.attach(model, [first, second], {"algorithm": "bsp", "bucket_bytes": 500}) as engine:
            for step in range(3):
                CASES["toy"].local_loss(model, step, world.rank).backward()
                first.step()
                model.zero_grad(set_to_none=to_none)
                if world.rank == 0:
                    with torch.no_grad(), engine.no_sync():
                        CASES["toy"].local_loss(model, step, world.rank)
                second.step()
        return values(model)

    found = in_process(train, 3)
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


def test_what_does_not_fit_together_is_refused():
    model = CASES["toy"].model()
    every, first = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model, model[0]))
    with pytest.raises(CompositionError, match=r"0\.weight is stepped by 2 of the optimizers"):
        relaxcomm.attach(model, [every, first], "bsp")
    with pytest.raises(UsageError, match="listed twice"):
        relaxcomm.attach(model, [every, every], "bsp")
    momentum = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(CompositionError, match="group 1 has"):
        relaxcomm.attach(model, [first, momentum], "qadam")


def taking_turns(world, algorithm):
    """Two optimizers of all parameters, of which the engine follows one."""
    model = CASES["toy"].model(seed=0)
    followed, other = (torch.optim.SGD(model.parameters(), lr=lr) for lr in (0.1, 0.05))
    with world.attach(model, followed, {"algorithm": algorithm}) as engine:
        for step in range(4):
            followed.zero_grad()
            CASES["toy"].local_loss(model, step, world.rank).backward()
            other.step()
            followed.step()
        assert (engine.statistics["steps"], engine.statistics["synchronisations"]) == (4, 4)
        engine.close(average=False)
    return values(model)


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 1}, "qadam"], ids=str)
def test_another_of_the_same_parameters_may_step_beside_it(algorithm):
    first, *others = in_process(taking_turns, 3, algorithm)
    for found in others:
        np.testing.assert_array_equal(found, first)


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 1}, "qadam"], ids=str)
def test_parameters_that_two_share_later_are_refused(algorithm):
    def program(group):
        model = CASES["toy"].model()
        first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))
        with relaxcomm.attach(
            model, [first, second], {"algorithm": algorithm, "bucket_bytes": 150}, process_group=group
        ):
            second.add_param_group({"params": list(model[0].parameters())})
            CASES["toy"].local_loss(model, 0, 0).backward()
            first.step()

    with pytest.raises(UsageError, match=r"0\.weight is stepped by 2 of the optimizers; give each"):
        relaxcomm.simulate(program, 3)
