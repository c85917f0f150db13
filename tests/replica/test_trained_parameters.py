"""Parameters and gradients that come from elsewhere than where the engine looks: an error names them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn.utils import parametrize

import relaxcomm
from relaxcomm import UsageError, primitives
from tests.engine.harness import World, in_process, on_gloo, values
from tests.models import CASES, make_optimizer, take_step, trainable
from tests.ranks import RankError

LOCAL = {"name": "local_sgd", "steps": 2}
GROUPED: dict[str, object] = {"bsp": "bsp", "local": LOCAL}


def add_head(model, optimizer):
    model.add_module("head", nn.Linear(4, 4).double())
    optimizer.add_param_group({"params": model.head.parameters()})


def replace(model, optimizer):
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    optimizer.add_param_group({"params": [model[2].weight]})


def replace_in_the_model_alone(model, optimizer):
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())


def remove(model, optimizer):
    del model[2].bias
    model[2].register_parameter("bias", None)


def swap_in_a_group(model, optimizer):
    optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.zeros(3))


def weight_norm(model, optimizer):
    parametrize.register_parametrization(model[2], "weight", nn.Identity())
    model[2].parametrizations.weight.original = nn.Parameter(model[2].weight.detach().clone())


CHANGES: dict[Callable[..., None], str] = {
    add_head: r"head\.weight came after the engine was attached",
    replace: r"2\.weight was replaced or removed",
    replace_in_the_model_alone: r"2\.weight was replaced or removed",
    remove: r"2\.bias was replaced or removed",
    swap_in_a_group: r"shape \[3\], which is not in the model, came after",
    weight_norm: r"2\.weight was replaced or removed",
}


def changed(world: World, algorithm, change):
    case = CASES["toy"]
    model, optimizer = trainable("toy", "momentum")
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        for step in range(4):
            if step == 2:
                change(model, optimizer)
            take_step(case.local_loss(model, step, world.rank), optimizer)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("algorithm", GROUPED)
def test_a_parameter_that_comes_later_is_an_error(algorithm, change):
    with pytest.raises(UsageError, match=CHANGES[change] + ".*close the engine, and attach the model anew"):
        changed(World(0, 1), GROUPED[algorithm], change)


@pytest.mark.ranks
def test_it_is_an_error_on_every_rank():
    with pytest.raises(RankError) as caught:
        on_gloo(changed, 3, LOCAL, add_head)
    assert {kind for kind, _ in caught.value.errors.values()} == {"UsageError"}
    assert set(caught.value.errors) == {0, 1, 2}


def harmless(world: World):
    """Names, groups and parts that are not trained may change."""
    case = CASES["toy"]
    model = case.model()
    first, *others = model.parameters()
    optimizer = torch.optim.SGD(others, lr=0.05)
    with world.attach(model, optimizer, {"algorithm": LOCAL}):
        for step in range(8):
            if step == 2:
                optimizer.add_param_group({"params": [first]})  # gradual: the engine knew it already
            if step == 4:
                parametrize.register_parametrization(model[2], "weight", nn.Identity())
            if step == 6:
                model.add_module("probe", nn.Linear(4, 4).double().requires_grad_(False))
                optimizer.param_groups.reverse()
            take_step(case.local_loss(model, step, world.rank), optimizer)
    return values(model)


def test_what_is_harmless_is_none():
    first, *others = in_process(harmless, 3)
    assert all((first == other).all() for other in others)


def test_without_an_optimizer_a_new_parameter_with_a_gradient_is_an_error():
    model = nn.Sequential(nn.Linear(3, 4))
    with relaxcomm.attach(model, None, "bsp"):
        model(torch.ones(2, 3)).sum().backward()
        model.append(nn.Linear(4, 4))
        with pytest.raises(UsageError, match=r"1\.weight came after"):
            model(torch.ones(2, 3)).sum().backward()


def by_hand(model, step, rank):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def functional(model, step, rank):
    inputs, targets = CASES["toy"].data(step, rank)

    def loss(parameters):
        return nn.functional.mse_loss(functional_call(model, parameters, inputs), targets)

    parameters = dict(model.named_parameters())
    for name, gradient in grad(loss)({name: p.detach() for name, p in parameters.items()}).items():
        parameters[name].grad = gradient


def nothing(model, step, rank):
    pass


def not_exchanged(world: World, make, algorithm):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        for step in range(4):
            make(model, step, world.rank)
            optimizer.step()
    return values(model)


@pytest.mark.parametrize("make", [by_hand, functional, nothing], ids=lambda make: make.__name__)
@pytest.mark.parametrize("algorithm", ["bsp", "topk_sgd", "selsync"])
def test_gradients_without_a_backward_are_an_error_where_a_rule_wants_them(make, algorithm):
    words = r"step 0 without a backward that reached the model's parameters.*never exchanged.*torch\.func"
    with pytest.raises(UsageError, match=words):
        not_exchanged(World(0, 1), make, algorithm)


def test_a_step_that_was_refused_has_not_begun():
    model, optimizer = trainable("toy", "plain")
    with relaxcomm.attach(model, optimizer, "bsp") as engine:
        for _ in range(3):
            with pytest.raises(UsageError, match="step 0 without a backward"):
                optimizer.step()
        take_step(CASES["toy"].local_loss(model, 0, 0), optimizer)
        assert engine.step == 1


def test_where_parameters_are_exchanged_they_may_come_from_anywhere():
    first, *others = in_process(not_exchanged, 3, functional, LOCAL)
    assert all((first == other).all() for other in others)


@pytest.mark.filterwarnings("ignore:in step 0 workers train alone")
def test_a_rule_that_is_not_due_wants_none():
    """Gradients are exchanged in every third step; in the others they stay local."""
    rule = relaxcomm.Rule(
        trigger=primitives.every(steps=3), payload=primitives.gradients(), exchange=primitives.all_reduce()
    )
    model, optimizer = trainable("toy", "plain")
    with relaxcomm.attach(model, optimizer, relaxcomm.Algorithm((rule,))) as engine:
        for step in range(5):
            (functional if step in (1, 3, 4) else CASES["toy"].local_loss)(model, step, 0)
            if step in (0, 2):
                CASES["toy"].local_loss(model, step, 0).backward()
            optimizer.step()
        functional(model, 5, 0)
        with pytest.raises(UsageError, match="step 5 without a backward"):
            optimizer.step()
        assert engine.statistics["steps"] == 5


@pytest.mark.parametrize("second", ["local_sgd", "topk_sgd"])
def test_a_switch_goes_on_with_the_parameters_that_are_known(second):
    """A part that came later and is not trained is left alone; one that trains is an error there, too."""

    def program(world):
        case = CASES["toy"]
        model, optimizer = trainable("toy", "momentum")
        with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
            model.add_module("probe", nn.Linear(4, 4).double())
            for step in range(4):
                if step == 2:
                    engine.switch(second)
                take_step(case.local_loss(model[:-1], step, world.rank), optimizer)
            assert engine.algorithm.name == second
            optimizer.add_param_group({"params": model.probe.parameters()})
            with pytest.raises(UsageError, match=r"probe\.weight came after the engine was attached"):
                engine.switch("bsp")
            assert engine.algorithm.name == second
            optimizer.param_groups.pop()

    in_process(program, 3)


def test_a_switch_after_unfreezing_is_refused():
    model = CASES["toy"].model()
    model[2].requires_grad_(False)
    optimizer = make_optimizer("plain", model)
    with relaxcomm.attach(model, optimizer, "bsp") as engine:
        model[2].requires_grad_(True)
        with pytest.raises(UsageError, match=r"2\.weight was frozen when the engine was attached"):
            engine.switch("local_sgd")
