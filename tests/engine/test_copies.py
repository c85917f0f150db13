"""An attached model can be copied and saved: what comes of it is free of the engine."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm import UsageError
from relaxcomm.network import single
from tests.models import take_step
from tests.ranks import launch_script, run_ranks
from tests.waiting import until


def torch_saved(model):
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": torch_saved,
    "EMA": lambda model: torch.optim.swa_utils.AveragedModel(model).module,
}


def make():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model, optimizer, steps=3):
    for step in range(steps):
        take_step(model(torch.ones(5, 3) + step).square().mean(), optimizer)


@pytest.mark.parametrize("algorithm", ["bsp", "local_sgd", "selsync"])
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_an_attached_model_is_free(way, algorithm):
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, algorithm) as engine:
        train(model, optimizer)
        made = WAYS[way](model)
        counted = engine.statistics["steps"], engine.statistics["callback_seconds"]
        other = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
        assert all(torch.equal(a, b) for a, b in zip(made.parameters(), model.parameters(), strict=True))
        train(made, other)
        assert (engine.statistics["steps"], engine.statistics["callback_seconds"]) == counted
        train(model, optimizer)  # the original goes on
        assert engine.statistics["steps"] == 6
        with relaxcomm.attach(made, other, algorithm) as second:  # and the copy can be attached itself
            train(made, other, 2)
            assert second.statistics["steps"] == 2
    train(torch.compile(made, backend="eager", fullgraph=True), other)


def test_a_saved_model_is_loaded_where_relaxcomm_is_not(tmp_path: Path):
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, "bsp"):
        torch.save(model, tmp_path / "model.pt")
    program = (
        "import sys; sys.modules['relaxcomm'] = None\n"
        "import torch; model = torch.load(sys.argv[1], weights_only=False)\n"
        "model(torch.ones(2, 3)).sum().backward()"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "model.pt")], check=True, timeout=60)


def test_a_copied_optimizer_is_free():
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, "local_sgd") as engine:
        train(model, optimizer)
        other = pickle.loads(pickle.dumps(optimizer))
        copy.deepcopy(optimizer).step()
        other.step()
        assert engine.statistics["steps"] == 3


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_an_engine_is_not_copied(way):
    model, optimizer = make()
    with relaxcomm.attach(model, optimizer, "bsp") as engine:
        for held in (engine, {"model": model, "engine": engine}):
            with pytest.raises(TypeError, match=r"an engine .* cannot be copied.*checkpoint.save\(\)"):
                WAYS[way](held)


class Failing(torch.optim.SGD):
    """Can be stepped, but not followed to the end."""

    def register_step_post_hook(self, hook):
        raise MemoryError("no room for a hook")


CALLS = ("meet", "gather_objects", "issue", "announce", "serve")


class Broken(Exception):
    """A machine's own failure."""


def failing_at(number: int):
    """One worker's network, whose call of that number fails; and what became of it."""
    transport, seen = single(), {"calls": 0, "closed": False}

    def watched(method):
        def called(*args):
            seen["calls"] += 1
            if seen["calls"] == number:
                raise Broken
            return method(*args)

        return called

    for name in CALLS:
        setattr(transport, name, watched(getattr(transport, name)))
    close = transport.close

    def closed():
        seen["closed"] = True
        close()

    transport.close = closed
    return transport, seen


def traces(model, optimizer):
    """All hooks that hang on a model and an optimizer."""
    own = [vars(one).items() for one in (*model.modules(), optimizer)]
    held = [value for items in own for name, value in items if "hook" in name and hasattr(value, "__len__")]
    of_tensors = [p._post_accumulate_grad_hooks or () for p in model.parameters()]
    return [len(one) for one in (*held, *of_tensors)]


CONFIGS = {
    "bsp": {"algorithm": "bsp"},
    "ssp": {"algorithm": "ssp"},
    "metrics": {"algorithm": "local_sgd", "metrics": {"port": 0}},
    "phases": {"algorithm": "local_sgd", "phases": [{"after_steps": 3, "algorithm": "bsp"}]},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_attach_that_fails_on_the_way_leaves_nothing(config):
    """Wherever the network fails, until it is called so seldom that attach succeeds."""
    model, optimizer = make()
    before, threads = traces(model, optimizer), set(threading.enumerate())
    for number in range(1, 50):
        transport, seen = failing_at(number)
        try:
            engine = relaxcomm.attach(model, optimizer, config, process_group=transport)
        except Broken:
            assert traces(model, optimizer) == before
            assert seen["closed"]
            assert set(threading.enumerate()) <= threads  # those of other tests may be about to end
            continue
        seen["calls"] = number  # no other one fails
        engine.close(average=False)
        break
    assert 2 < number < 49
    assert traces(model, optimizer) == before
    with relaxcomm.attach(model, optimizer, config):
        pass


def test_an_attach_that_fails_at_a_hook_leaves_nothing():
    model, _ = make()
    optimizer = Failing(model.parameters(), lr=0.1)
    before = traces(model, optimizer)
    transport, seen = failing_at(-1)
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(MemoryError):
        relaxcomm.attach(model, optimizer, "bsp", process_group=transport, scaler=scaler)
    assert traces(model, optimizer) == before
    assert seen["closed"]
    relaxcomm.attach(model, None, "bsp").close()  # the model is not held to be attached


def serving(rank):
    """Whether no thread serves on this rank any more, soon after all have failed to attach, in turn."""

    class FailingLater(Failing):
        def register_step_post_hook(self, hook):
            time.sleep(0.3 * rank)
            super().register_step_post_hook(hook)

    model, _ = make()
    with pytest.raises(MemoryError):
        relaxcomm.attach(model, FailingLater(model.parameters(), lr=0.1), "ssp")
    names = names_now()
    return until(
        lambda: not any(n.startswith("relaxcomm-service") for n in names_now()), f"served by {names}"
    )


def names_now():
    """Of the threads that run on this rank."""
    return [one.name for one in threading.enumerate()]


@pytest.mark.ranks
def test_services_of_an_attach_that_fails_end_with_it():
    assert run_ranks(serving, 3) == [True] * 3


class Wrapper(torch.optim.Optimizer):
    """An optimizer by name alone, as Accelerate's is."""

    def __init__(self):
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (torch.optim.SGD, r"SGD is the class of an optimizer; pass one that is made, such as SGD\(model\."),
        (object(), "object is no torch.optim.Optimizer"),
        ([], "the list of optimizers is empty; pass None"),
        ([None], "NoneType is no torch.optim.Optimizer"),
        (Wrapper(), "Wrapper wraps an optimizer.*pass the optimizer inside it"),
    ],
)
def test_what_is_no_optimizer_is_refused(optimizer, words):
    model, _ = make()
    with pytest.raises(UsageError, match=words):
        relaxcomm.attach(model, optimizer, "bsp")
    assert not any(traces(model, make()[1]))


@pytest.mark.parametrize("given", ["parameters", "optimizer"])
def test_what_is_no_model_is_refused_on_every_rank(given):
    def attach(group):
        model, optimizer = make()
        swapped = (optimizer, model) if given == "optimizer" else (model.parameters(), optimizer)
        wrong = group.rank() == 1
        with pytest.raises(UsageError, match=r"(generator|SGD) is no torch\.nn\.Module.*attach\(model, "):
            relaxcomm.attach(*(swapped if wrong else (model, optimizer)), "bsp", process_group=group)
        return any(traces(model, optimizer))

    assert relaxcomm.simulate(attach, 3) == [False] * 3


REFUSED = """
import relaxcomm, torch, torch.distributed as dist
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    relaxcomm.attach(model, optimizer, "bps")
except relaxcomm.ConfigError as error:
    assert "'bps' is no file; unknown algorithm 'bps'; did you mean 'bsp'?" in str(error), error
    assert not dist.is_initialized()
else:
    raise AssertionError("not refused")
"""


@pytest.mark.ranks
def test_a_refused_attach_gives_back_the_group_that_it_made():
    for done in launch_script(REFUSED, 2):
        assert done.returncode == 0, done.stderr
