"""Attach and close leave no trace; what the engine cannot honour is refused with a reason."""

from __future__ import annotations

import gc
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm import ConfigError
from tests import references
from tests.engine.harness import World, in_process, on_gloo, simulated_workers, values
from tests.models import CASES, make_optimizer, take_step, trainable

LOCAL = {"name": "local_sgd", "steps": 2}


def hook_counts(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """How many hooks hang on every module, parameter and on the optimizer."""
    counts = {}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if "hook" in attribute and hasattr(value, "__len__"):
                counts[f"{name}.{attribute}"] = len(value)
    for name, parameter in model.named_parameters():
        for attribute in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            counts[f"{name}.{attribute}"] = len(getattr(parameter, attribute) or ())
    for attribute, value in vars(optimizer).items():
        if "hook" in attribute and hasattr(value, "__len__"):
            counts[f"optimizer.{attribute}"] = len(value)
    return counts


def traces(world: World, algorithm, fail: bool):
    case = CASES["transformer"]
    model, optimizer = trainable("transformer", "momentum", seed=0)
    names = set(vars(model)), set(vars(optimizer)), {name: id(p) for name, p in model.named_parameters()}
    step_method = getattr(optimizer.step, "__func__", optimizer.step)
    before = hook_counts(model, optimizer)
    try:
        with world.attach(model, optimizer, {"algorithm": algorithm}):
            attached = hook_counts(model, optimizer)
            for step in range(3):
                take_step(case.local_loss(model, step, world.rank), optimizer)
            if fail:
                raise KeyError("the user's own mistake")
    except KeyError:
        assert fail
    after_names = (
        set(vars(model)),
        set(vars(optimizer)),
        {name: id(p) for name, p in model.named_parameters()},
    )
    same_step = getattr(optimizer.step, "__func__", optimizer.step) is step_method
    model.zero_grad()
    case.local_loss(model, 9, world.rank).backward()
    return before, attached, hook_counts(model, optimizer), names == after_names, same_step


@pytest.mark.every_other("network", "algorithm", "fail")
@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize(
    "algorithm", ["bsp", LOCAL, {"name": "diloco", "steps": 2}], ids=["bsp", "local_sgd", "diloco"]
)
def test_close_leaves_no_hook_and_no_attribute(network, algorithm, fail):
    for before, attached, after, same_names, same_step in network(traces, 3, algorithm, fail):
        assert attached != before
        assert after == before
        assert same_names
        assert same_step


def attach_again(world: World):
    """Close and attach again, with another algorithm, on the same objects."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    for algorithm, span in (("bsp", range(4)), (LOCAL, range(4, 8))):
        with world.attach(model, optimizer, {"algorithm": algorithm}):
            for step in span:
                take_step(case.local_loss(model, step, world.rank), optimizer)
    return values(model)


def test_attach_again_with_another_algorithm(network):
    expected = references.post_local_sgd(simulated_workers(3), 8, 2, after=4)[-1][0]
    for end in network(attach_again, 3):
        np.testing.assert_allclose(end, expected, rtol=1e-9, atol=1e-9)


def gloo_threads() -> int:
    """Of this process."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it ends just now
            found += (task / "comm").read_text().startswith("gloo")
    return found


def threads_around(world: World):
    """Gloo's threads before, while an engine is attached, and after its close, of three engines."""
    found = []
    gc.collect()  # what earlier scenarios have left
    gc.disable()
    try:
        for _ in range(3):
            model = CASES["toy"].model()
            before = gloo_threads()
            with world.attach(model, make_optimizer("plain", model), {"algorithm": LOCAL}):
                during = gloo_threads()
            found.append((before, during, gloo_threads()))
    finally:
        gc.enable()
    return found


@pytest.mark.ranks
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux names them")
def test_close_ends_the_transport_s_threads():
    for rounds in on_gloo(threads_around, 3):
        for before, during, after in rounds:
            assert during > before == after


def attach_twice(world: World):
    model, optimizer = trainable("toy", "plain", seed=0)
    with world.attach(model, optimizer, {"algorithm": "bsp"}):
        world.attach(model, optimizer, {"algorithm": "bsp"})


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3, sparse=True)

    def forward(self, tokens):
        return self.table(tokens)


def sparse(world: World):
    model = Sparse()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": "bsp"}):
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()


def closure(world: World):
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=0)

    def evaluate():
        optimizer.zero_grad()
        loss = case.local_loss(model, 0, world.rank)
        loss.backward()
        return loss

    with world.attach(model, optimizer, {"algorithm": "bsp"}):
        optimizer.step(evaluate)


def unfreeze(world: World):
    case = CASES["toy"]
    model = case.model(seed=0)
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": "bsp"}):
        for step in range(4):
            if step == 2:
                model[2].requires_grad_(True)
            take_step(case.local_loss(model, step, world.rank), optimizer)


def convert(world: World):
    model = CASES["mlp"].model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": "bsp"}):
        for step in range(4):
            if step == 2:
                model.to(torch.float64)
            inputs, targets = (
                tensor.to(model[0].weight.dtype) for tensor in CASES["mlp"].data(step, world.rank)
            )
            take_step(nn.functional.mse_loss(model(inputs), targets), optimizer)


def create_graph(world: World):
    case = CASES["toy"]
    model = case.model(seed=0)
    with world.attach(model, make_optimizer("plain", model), {"algorithm": "bsp"}):
        case.local_loss(model, 0, world.rank).backward(create_graph=True)


def only_local_backwards(world: World):
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=0)
    with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
        with engine.no_sync():
            case.local_loss(model, 0, world.rank).backward()
        optimizer.step()


def last_backward_alone(world: World):
    case = CASES["toy"]
    model = case.model(seed=0)
    with world.attach(model, make_optimizer("plain", model), {"algorithm": "bsp"}) as engine:
        case.local_loss(model, 0, world.rank).backward()
        with engine.no_sync():
            case.local_loss(model, 1, world.rank).backward()


def local_without_optimizer(world: World):
    world.attach(CASES["toy"].model(seed=0), None, {"algorithm": LOCAL})


def lazy(world: World):
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    world.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), {"algorithm": "bsp"})


def without_memory(world: World):
    with torch.device("meta"):
        model = nn.Linear(4, 2)
    world.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), {"algorithm": "bsp"})


def frozen(tensor):
    model = nn.Linear(4, 2)
    model.register_parameter("odd", nn.Parameter(tensor, requires_grad=False))
    return model


def quantised(world: World):
    with warnings.catch_warnings(action="ignore"):  # torch is to give them up
        model = frozen(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    world.attach(model, torch.optim.SGD([model.weight], lr=0.1), {"algorithm": LOCAL})


def of_one_entry(world: World):
    model = frozen(torch.ones(1).expand(3))
    world.attach(model, torch.optim.SGD([model.weight], lr=0.1), {"algorithm": LOCAL})


def no_scaler(world: World):
    model = CASES["toy"].model(seed=0)
    world.attach(model, make_optimizer("plain", model), {"algorithm": "bsp"}, scaler=True)


def together_with_a_value(world: World):
    with world.attach(CASES["toy"].model(seed=0), None, {"algorithm": "bsp"}) as engine:
        engine.together(3)


def complex_entries_compared(world: World):
    model = nn.ParameterList([torch.zeros(3, 2, dtype=torch.complex64)])
    world.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), {"algorithm": "topk_sgd"})


REFUSED = {
    attach_twice: "",
    sparse: "table.weight",
    closure: "closure",
    unfreeze: "2.weight",
    convert: "",
    create_graph: "create_graph",
    only_local_backwards: "no_sync",
    last_backward_alone: "the last backward of each step outside no_sync",
    local_without_optimizer: "optimizer",
    lazy: "0.weight has no shape yet",
    without_memory: "weight is on the meta device",
    quantised: "the parameter odd is sparse, nested, quantised or expanded",
    of_one_entry: "the parameter odd is sparse, nested, quantised or expanded",
    no_scaler: "True is no torch.amp.GradScaler; pass the one that scales the loss, or None",
    together_with_a_value: "calls what it is given, got 3; give a function",
    complex_entries_compared: "torch.view_as_complex",
}


def refusal(world: World, scenario):
    """The kind and the words of the error that a scenario ends with."""
    with pytest.raises(relaxcomm.RelaxcommError) as caught:
        scenario(world)
    return type(caught.value).__name__, str(caught.value)


def assert_refused(scenario, errors):
    for kind, words in errors:
        assert kind in {"UsageError", "CompositionError"}, words
        assert REFUSED[scenario] in words


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("scenario", REFUSED, ids=lambda scenario: scenario.__name__)
def test_what_cannot_be_honoured_is_refused_on_every_rank(scenario, size):
    assert_refused(scenario, in_process(refusal, size, scenario))


@pytest.mark.ranks
@pytest.mark.parametrize("scenario", [unfreeze, lazy], ids=["in a step", "at attach"])
def test_so_it_is_on_gloo(scenario):
    assert_refused(scenario, on_gloo(refusal, 3, scenario))


def rank_of_first_error(world: World):
    raise ValueError(f"rank {world.rank} fails by itself")


def test_the_error_of_an_in_process_rank_reaches_the_test():
    with pytest.raises(Exception, match="fails by itself"):
        in_process(rank_of_first_error, 3)


def test_a_string_is_an_algorithm_s_name_unless_it_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, optimizer = trainable("toy", "plain", seed=0)

    def attached(config):
        with relaxcomm.attach(model, optimizer, config) as engine:
            return engine.algorithm.name

    (tmp_path / "bsp").mkdir()
    assert attached("bsp") == "bsp"
    (tmp_path / "local_sgd").write_text("algorithm: diloco")
    (tmp_path / "run.yaml").write_text("algorithm: slowmo")
    assert [attached(name) for name in ("local_sgd", "run.yaml")] == ["diloco", "slowmo"]
    for name in ("missing.yaml", "missing.yml", Path("bsp")):
        with pytest.raises(ConfigError, match="cannot read the configuration"):
            attached(name)
    for name, near in (("slowmow", "'slowmo'"), ("configs/diloco", "'diloco'")):
        words = f"'{name}' is no file; unknown algorithm '{name}'.*{near}"
        with pytest.raises(ConfigError, match=words):
            attached(name)
    (tmp_path / "run.yaml").write_text("algorithm: bsp\nmembership: {elastic: true,\n  quorum: 9}")
    with pytest.raises(ConfigError, match=r"run\.yaml: line 3: membership\.quorum is 9"):
        attached("run.yaml")


def test_an_error_without_words_is_told_by_its_name(monkeypatch):
    said, engine = [], relaxcomm.attach(nn.Linear(2, 1), None, "bsp")
    monkeypatch.setattr(engine._session, "release", said.append)
    with pytest.raises(KeyboardInterrupt), engine:
        raise KeyboardInterrupt
    engine.fail(ValueError("after its end"))
    assert said == ["failed: KeyboardInterrupt"]


class Counting(nn.Sequential):
    """Counts how often its parameters are asked for, each time by a walk through all modules."""

    walks = 0

    def named_parameters(self, *args, **options):
        self.walks += 1
        return super().named_parameters(*args, **options)


def test_attach_walks_seldom_through_a_model():
    """Which takes milliseconds where there are hundreds of modules."""
    model = Counting(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.walks = 0
    with relaxcomm.attach(model, optimizer, "bsp") as engine:
        assert model.walks <= 7
        model.walks = 0
        engine.switch("local_sgd")
        assert model.walks <= 2
