"""torch.compile'd modules, compiled before or after attach, are trained like the plain ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import relaxcomm
from tests import references
from tests.engine.harness import World, on_gloo, simulated_workers, values
from tests.models import CASES, make_optimizer, trainable

pytestmark = pytest.mark.ranks
ALGORITHMS = {
    "bsp": ("bsp", references.bsp, ()),
    "local_sgd": ({"name": "local_sgd", "steps": 3}, references.local_sgd, (3,)),
}


def run(world: World, algorithm, when: str, backend: str):
    torch._dynamo.reset()
    case = CASES["toy"]
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    compiled = torch.compile(model, backend=backend)
    if when == "in_place":
        model.compile(backend=backend)
        compiled = model
    attached = compiled if when == "attach_compiled" else model
    with world.attach(attached, optimizer, {"algorithm": algorithm}):
        for step in range(6):
            case.local_loss(compiled, step, world.rank).backward()
            optimizer.step()
            optimizer.zero_grad()
        end = values(model)
    torch._dynamo.reset()
    return end


@pytest.mark.every_other("name", "when", "backend")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("when", ["attach_plain", "attach_compiled", "in_place"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_compiled_model_equals_the_reference(name, when, backend):
    algorithm, reference, arguments = ALGORITHMS[name]
    expected = reference(simulated_workers(3), 6, *arguments)[-2]
    for rank, end in enumerate(on_gloo(run, 3, algorithm, when, backend)):
        np.testing.assert_allclose(end, expected[rank], rtol=1e-9, atol=1e-9)


def in_part(world: World, way: str, backend: str, algorithm, options, look=values):
    """What is compiled is a block, the optimizer's step, or all that the training loop does in a step."""
    torch._dynamo.reset()
    case = CASES["toy"]
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    called, step = model, optimizer.step

    def train(inputs, targets):
        case.loss(called(inputs), targets).backward()
        step()
        optimizer.zero_grad()

    if way == "whole graph":
        called = torch.compile(model, backend=backend, **options)
    elif way == "blocks":
        model[0] = torch.compile(model[0], backend=backend, **options)
    with world.attach(called, optimizer, {"algorithm": algorithm}):
        if way == "blocks":  # after attach, and in place
            model[2].compile(backend=backend)
        elif way == "optimizer":
            step = torch.compile(optimizer.step, backend=backend)
        elif way == "training step":
            train = torch.compile(train, backend=backend)
        for number in range(6):
            train(*case.data(number, world.rank))
        end = look(model)
    torch._dynamo.reset()
    return end


WAYS = {
    "whole graph": ("bsp", {"fullgraph": True}),
    "blocks": ("bsp", {"fullgraph": True}),
    "optimizer": ("local_sgd", {}),
    "training step": ("bsp", {}),
}


def assert_in_part(way: str, backend: str, **more):
    name, options = WAYS[way]
    algorithm, reference, arguments = ALGORITHMS[name]
    expected = reference(simulated_workers(3), 6, *arguments)[-2]
    for rank, end in enumerate(on_gloo(in_part, 3, way, backend, algorithm, {**options, **more})):
        np.testing.assert_allclose(end, expected[rank], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_compiled_may_be_a_part_or_all(way):
    assert_in_part(way, "eager")


def looked_into(model):
    """Which of relaxcomm's functions torch.compile has tried to trace."""
    from torch._dynamo.convert_frame import input_codes

    codes = [code for code in (seen() for seen in input_codes.seen) if code is not None]
    assert codes
    return [code.co_qualname for code in codes if "relaxcomm" in code.co_filename.split("/")]


def test_the_compiler_looks_into_no_callback():
    """Only into what a module's hooks are, which breaks the graph there, so that the rest is compiled."""
    for found in on_gloo(in_part, 3, "training step", "eager", "bsp", {}, looked_into):
        assert all(name.startswith("Hook.") for name in found), found


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own look at a hook's arguments
def test_a_model_with_hooks_is_compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = CASES["toy"].model()
    model.compile(backend="eager")
    with relaxcomm.attach(model, make_optimizer("plain", model), "bsp"):
        CASES["toy"].local_loss(model, 0, 0).backward()
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_with_the_compiler_that_is_the_default(way):
    assert_in_part(way, "inductor", **({"mode": "reduce-overhead"} if way == "whole graph" else {}))


@pytest.mark.parametrize("way", ["model", "in place", "optimizer"])
def test_a_whole_graph_with_hooks_inside_is_refused_with_what_to_do(way):
    torch._dynamo.reset()
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain")
    called, step = model, optimizer.step
    with relaxcomm.attach(model, optimizer, "bsp"):
        if way == "optimizer":
            step = torch.compile(optimizer.step, backend="eager", fullgraph=True)
        elif way == "model":
            called = torch.compile(model, backend="eager", fullgraph=True)
        else:
            model.compile(backend="eager", fullgraph=True)
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"fullgraph out of model\.compile"):  # noqa: PT012  # in either
            case.local_loss(called, 0, 0).backward()
            step()
    torch._dynamo.reset()
