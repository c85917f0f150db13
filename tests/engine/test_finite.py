"""NaN on one rank: an error on all that says where it arose, before any model has changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import relaxcomm
from tests.engine.harness import World, in_process, on_gloo
from tests.models import CASES, make_optimizer, take_step, trainable

NAN = float("nan")
STEPS, BAD_STEP, BAD_RANK = 8, 3, 1


def spoil(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.view(-1)[2] = NAN


def told(world: World, train) -> str:
    """What a rank was told; every one of them must be told something."""
    try:
        train(world)
    except relaxcomm.NonFiniteError as error:
        return str(error)
    return "nothing"


def told_to_all(train, size: int = 3) -> str:
    found = in_process(told, size, train)
    assert len(set(found)) == 1, found
    return found[0]


def trained(algorithm, where: str, **settings):
    """Training in which rank 1 comes upon NaN in the gradient, or the parameter, 2.bias."""

    def train(world: World) -> None:
        case = CASES["toy"]
        model = case.model().to(world.device)
        optimizer = make_optimizer("plain", model)
        with world.attach(model, optimizer, {"algorithm": algorithm, **settings}):
            for step in range(STEPS):
                loss = case.local_loss(model, step, world.rank)
                bad = world.rank == BAD_RANK and step == BAD_STEP
                if bad and where == "gradient":
                    loss = loss + NAN * model[2].bias.sum()
                loss.backward()
                if bad and where == "parameter":
                    spoil(model[2].bias)
                optimizer.step()
                optimizer.zero_grad()

    return train


OF_GRADIENTS = {
    "bsp": ("bsp", {"debug": True}),
    "powersgd": ("powersgd", {}),
    "topk_sgd": ({"name": "topk_sgd", "density": 0.5}, {}),
    "bytegrad": ("bytegrad", {}),
    "delayed_sgd": ({"name": "delayed_sgd", "delay": 2}, {}),
    "delayed_sgd, at close": ({"name": "delayed_sgd", "delay": 5}, {}),
    "selsync": ({"name": "selsync", "window_steps": 2}, {}),
    "hierarchical": ("hierarchical_local_sgd", {"topology": {"hierarchical": {"sizes": [2, 1]}}}),
}


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_a_gradient_is_named_with_its_rank(name):
    algorithm, settings = OF_GRADIENTS[name]
    text = told_to_all(trained(algorithm, "gradient", **settings))
    assert "the gradient of 2.bias on rank 1;" in text
    assert "pass it: attach(..., scaler=scaler)" in text
    assert text.startswith("step ")


def test_in_full_precision_nan_shows_on_all_ranks_as_in_ddp():
    """Nothing is kept that it would spoil, so nobody looks for it, until the engine closes."""

    def train(world: World) -> list[bool]:
        case = CASES["toy"]
        model = case.model()
        engine = world.attach(model, make_optimizer("plain", model), {"algorithm": "bsp"})
        loss = case.local_loss(model, 0, world.rank)
        (loss + NAN * model[2].bias.sum() if world.rank == BAD_RANK else loss).backward()
        shown = [bool(parameter.grad.isfinite().all()) for parameter in model.parameters()]
        engine.close()
        return shown

    expected = [name != "2.bias" for name, _ in CASES["toy"].model().named_parameters()]
    assert in_process(train, 3) == [expected] * 3


def test_the_drift_guard_looks_for_nan():
    guard = {"drift_guard": {"every_steps": 2, "policy": "error"}}
    for text in in_process(told, 3, trained("bsp", "gradient", **guard)):
        assert text.startswith(f"step {BAD_STEP}: NaN or infinity in parameter 2.bias"), text


def given_up(world: World) -> bool:
    """Whether what is left to send stays as it is where an exchange is given up."""
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": {"name": "sparseloco", "steps": 2}}) as engine:
        for step in range(STEPS):
            CASES["toy"].local_loss(model, step, world.rank).backward()
            if (step, world.rank) == (BAD_STEP, BAD_RANK):
                spoil(model[2].bias)
            before = engine._session.bound.state.export()["slots"]
            try:
                optimizer.step()
            except relaxcomm.NonFiniteError:
                torch.testing.assert_close(engine._session.bound.state.export()["slots"], before)
                engine.close(average=False)
                return True
    return False


def test_what_is_left_to_send_is_that_before_an_exchange_that_is_given_up():
    assert in_process(given_up, 3) == [True] * 3


OF_PARAMETERS = {
    "local_sgd": ({"name": "local_sgd", "steps": 4}, {}),
    "local_sgd, late": ({"name": "local_sgd", "steps": 4, "delay": 2}, {}),
    "local_sgd, late at close": ({"name": "local_sgd", "steps": 8, "delay": 2}, {}),
    "diloco": ({"name": "diloco", "steps": 2}, {}),
    "streaming_diloco": ({"name": "streaming_diloco", "steps": 4, "delay": 1}, {}),
    "sparseloco": ({"name": "sparseloco", "steps": 2}, {}),
    "d_psgd": ("d_psgd", {"topology": "ring"}),
    "choco_sgd": ("choco_sgd", {"topology": "ring"}),
    "sgp": ("sgp", {"topology": "ring"}),
}


@pytest.mark.parametrize("name", OF_PARAMETERS)
def test_a_parameter_is_named_with_its_rank(name):
    algorithm, settings = OF_PARAMETERS[name]
    text = told_to_all(trained(algorithm, "parameter", **settings))
    assert "parameter 2.bias" in text
    assert "on rank 1;" in text
    assert "on rank 0" not in text


@pytest.mark.parametrize("topology", ["complete", "ring"])
def test_an_optimizers_state_is_named_as_such(topology):
    """It is exchanged after the parameters, whose average is kept."""
    kept = []

    def train(world: World) -> None:
        model = CASES["toy"].model()
        optimizer = torch.optim.Adam(model.parameters())
        if world.rank == BAD_RANK:
            optimizer.register_step_post_hook(lambda *_: spoil(optimizer.state[model[2].bias]["exp_avg"]))
        exchange = "all_reduce" if topology == "complete" else "gossip"
        payloads = "parameters", {"optimizer_state": {"slots": "exp_avg"}}
        rules = [{"payload": payload, "exchange": exchange} for payload in payloads]
        with world.attach(model, optimizer, {"algorithm": {"rules": rules}, "topology": topology}):
            CASES["toy"].local_loss(model, 0, world.rank).backward()
            try:
                optimizer.step()
            finally:
                kept.append(model[0].weight.detach().clone())

    text = told_to_all(train)
    torch.testing.assert_close(kept, kept[:1] * 3)
    assert "infinity in the optimizer's exp_avg of 2.bias on rank 1;" in text


def test_what_overflows_on_the_way_is_no_ranks():
    def train(world: World) -> None:
        model = nn.Linear(3, 2, bias=False)
        optimizer = make_optimizer("plain", model)
        rule = {"payload": "gradients", "compressor": {"cast": {"dtype": "float16"}}}
        with world.attach(model, optimizer, {"algorithm": {"rules": [rule | {"exchange": "all_reduce"}]}}):
            model(torch.full((1, 3), 1e6)).sum().backward()

    text = told_to_all(train)
    assert "the gradient of weight" in text
    assert "no rank" in text


def closing(world: World, algorithm, what: str, how: str):
    """One rank's NaN behind the last exchange; what all are told, and what then is left of the engine."""
    case = CASES["convnet"]
    model, optimizer = trainable("convnet", "plain")
    engine = world.attach(model, optimizer, {"algorithm": algorithm})
    for step in range(2):
        take_step(case.local_loss(model, step, world.rank), optimizer)
    if world.rank == BAD_RANK:
        spoil(dict(model.state_dict())[what])
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def enter(_: World) -> None:
        if how == "close":
            engine.close()
        else:
            with engine.averaged():
                raise AssertionError("there is no mean to look at")

    text = told(world, enter)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
    if how == "averaged":
        told(world, lambda _: engine.close())  # the same again
    return text, trained_again(world, model, case)


def trained_again(world: World, model: nn.Module, case) -> bool:
    """Whether the model is free again: hooks are gone, and a new engine takes it once it is mended."""
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.nan_to_num_()
    case.local_loss(model, 0, world.rank).backward()  # nobody else takes part
    optimizer = make_optimizer("plain", model)
    with world.attach(model, optimizer, {"algorithm": "bsp"}):
        case.local_loss(model, 0, world.rank).backward()
        optimizer.step()
    return all(value.isfinite().all() for value in model.state_dict().values())


LOCAL = {"name": "local_sgd", "steps": 2}
ENDS = [
    ("bsp", "1.running_mean", "buffer 1.running_mean on rank 1;"),
    ("bytegrad", "4.running_var", "buffer 4.running_var on rank 1;"),
    (LOCAL, "4.running_var", "buffer 4.running_var on rank 1;"),
    (LOCAL, "0.weight", "parameter 0.weight on rank 1;"),
    ("bsp", "0.weight", "parameter 0.weight on rank 1;"),
    ("ssp", "1.running_mean", "buffer 1.running_mean on rank 1;"),
]


@pytest.mark.parametrize("how", ["close", "averaged"])
@pytest.mark.parametrize(("algorithm", "what", "expected"), ENDS)
def test_close_and_averaged_look_before_they_write(algorithm, what, expected, how):
    for text, is_free in in_process(closing, 3, algorithm, what, how):
        assert expected in text
        assert "GradScaler" not in text, "it looks at gradients"
        assert is_free


@pytest.mark.ranks
def test_on_gloo_too():
    for text, is_free in on_gloo(closing, 3, "bsp", "1.running_mean", "close"):
        assert "buffer 1.running_mean on rank 1;" in text
        assert is_free
    for text, is_free in on_gloo(closing, 3, LOCAL, "0.weight", "averaged"):
        assert "parameter 0.weight on rank 1;" in text
        assert is_free


def test_without_an_average_each_rank_looks_at_its_own():
    """bsp has equal replicas and here no buffers, so that nothing is sent at the end."""

    def train(world: World) -> str:
        model = nn.Linear(3, 2)
        optimizer = make_optimizer("plain", model)
        engine = world.attach(model, optimizer, {"algorithm": "bsp"})
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        spoil(model.weight)
        sent = engine.statistics["bytes_sent"]
        text = told(world, lambda _: engine.close())
        assert engine.statistics["bytes_sent"] == sent
        return text

    for rank, text in enumerate(in_process(train, 3)):
        assert f"parameter weight on rank {rank};" in text


def test_who_asks_for_no_average_may_leave_with_nan():
    def train(world: World) -> str:
        model = nn.Linear(3, 2)
        engine = world.attach(model, make_optimizer("plain", model), {"algorithm": LOCAL})
        spoil(model.weight)
        return told(world, lambda _: engine.close(average=False))

    assert in_process(train, 3) == ["nothing"] * 3
