"""A run that nobody closes: its log has an end all the same, and rank 0 says that replicas may differ."""

from __future__ import annotations

import gc
import threading
import urllib.request
from weakref import ref

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from relaxcomm.engine.reporting import unclosed
from tests.engine.harness import World, in_process, values
from tests.interpreters import run_interpreters
from tests.models import CASES, make_optimizer, trainable
from tests.monitoring.harness import read_log
from tests.waiting import until

SCRIPT = """
import os, sys
import torch, relaxcomm
left = []
def train(group):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"algorithm": sys.argv[1], "output": sys.argv[2], "metrics": {"port": None}}
    engine = relaxcomm.attach(model, optimizer, config, process_group=group)
    left.append((model, optimizer, engine))
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    if "close" in sys.argv:
        engine.close()
relaxcomm.simulate(train, 3)
"""
FORKED = "if not os.fork(): sys.exit()\nos.wait()"
COLLECTED = """
import gc, weakref
models = [weakref.ref(model) for model, *_ in left]
if not os.fork():
    left.clear(), gc.collect(), sys.exit()
os.wait()
left.clear(), gc.collect()
assert not any(model() for model in models), "a model is kept"
"""
SAID = "relaxcomm: the engine was never closed, so ranks may end with different models; call engine.close() "


@pytest.mark.parametrize(
    ("algorithm", "end", "said", "status"),
    [
        ("local_sgd", FORKED, 1, "not closed"),
        ("selsync", COLLECTED + FORKED, 1, "not closed"),
        pytest.param("bsp", "", 0, "not closed", marks=pytest.mark.slow),
        pytest.param("local_sgd", COLLECTED, 0, "closed at step 1", marks=pytest.mark.slow),
        ("local_sgd", "raise KeyError('of the user')", 0, "failed: KeyError: 'of the user'"),
        pytest.param("local_sgd", "", 0, "closed at step 1", marks=pytest.mark.slow),
    ],
    ids=["differs", "collected", "equal", "closed and collected", "failed", "closed"],
)
def test_at_exit_the_log_is_ended_and_what_may_differ_is_said_once(tmp_path, algorithm, end, said, status):
    arguments = [algorithm, str(tmp_path), *(["close"] if status.startswith("closed") else [])]
    (done,) = run_interpreters(SCRIPT + end, arguments)
    assert done.stderr.count(SAID) == said, done.stderr
    assert "AssertionError" not in done.stderr
    first, *_, last = read_log(tmp_path, 0)
    assert first["world_size"] == 3
    assert (last["summary"]["status"], last["summary"]["steps"]) == (status, 1)


ERROR_FEEDBACK = {
    "payload": "gradients",
    "compressor": {"error_feedback": {"top_k": {"density": 0.5}}},
    "exchange": "all_gather",
}
ALGORITHMS = {
    "bsp": "bsp",
    "selsync": "selsync",
    "local_sgd": {"name": "local_sgd", "steps": 2},
    "error_feedback": {"rules": [ERROR_FEEDBACK]},
}


@pytest.fixture
def collected(monkeypatch):
    """What is to be said and ended at exit, of the sessions that this test leaves to gc."""
    gc.collect()  # what other tests have left
    entries = []
    monkeypatch.setattr(unclosed, "_collected", entries)
    yield entries
    gc.collect()


class TwoOutputs(nn.Module):
    """It returns a parameter, too, on which hooks stay; its backward can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
        self.fails = False

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.fails:  # when all later layers have their gradients
            self.layers[0].bias.register_post_accumulate_grad_hook(fail)
        return self.layers(inputs), self.layers[3].weight


def fail(gradient: torch.Tensor) -> None:
    raise MemoryError("in a backward")


def dropped(world: World, algorithm, fails: bool):
    """What is left of an engine that nobody has closed, of its model and its parameters; and a loss."""
    model = TwoOutputs()
    optimizer = make_optimizer("momentum", model)
    session = world.attach(model, optimizer, {"algorithm": algorithm})._session
    for step in range(3):
        model.fails = fails and step == 2
        outputs, weight = model(torch.ones(2, 4))
        loss = outputs.sum() + weight.square().sum()
        try:
            loss.backward()
        except MemoryError:
            break
        optimizer.step()
        optimizer.zero_grad()
    return [ref(session), ref(model)], [*map(ref, model.parameters())], None if fails else loss


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_model_that_is_dropped_is_collected_with_its_engine(collected, algorithm, fails):
    left = in_process(dropped, 3, ALGORITHMS[algorithm], fails)
    gc.collect()
    for parts, parameters, loss in left:
        assert [part() for part in parts] == [None, None]
        if loss is None:  # a loss would hold them, and torch what has failed until the thread has ended
            until(
                lambda refs=parameters: not any(one() is not None for one in refs), "parameters are gone", 30
            )
    said = [may_differ for may_differ, _ in collected]  # by rank 0 alone
    assert sorted(said) == [False, False, algorithm in ("selsync", "local_sgd")]


def test_what_torch_calls_for_all_optimizers_does_not_grow_with_engines_that_are_dropped(collected):
    hooks = torch_optimizer._global_optimizer_post_hooks
    counts = []
    for _ in range(3):
        in_process(dropped, 1, "bsp", False)
        gc.collect()
        counts.append(len(hooks))
    assert counts == [counts[0]] * 3


def train_on(world: World, algorithm, by_parts: bool, keeps_engine: bool):
    """The parameters after training with the model and its optimizer, or with the model's parts alone."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain", seed=world.rank)
    engine = world.attach(model, None if by_parts else optimizer, {"algorithm": algorithm})
    if by_parts:
        model = nn.Sequential(*model)
    if not keeps_engine:
        del engine
    gc.collect()
    for step in range(4):
        case.local_loss(model, step, world.rank).backward()
        optimizer.step()
        optimizer.zero_grad()
    return values(model).tolist()


@pytest.mark.parametrize(
    ("algorithm", "by_parts"), [("bsp", False), ("bsp", True), ("selsync", False), ("local_sgd", False)]
)
def test_an_engine_that_nobody_holds_goes_on_while_its_model_is_trained(collected, algorithm, by_parts):
    kept, not_kept = (
        in_process(train_on, 3, ALGORITHMS[algorithm], by_parts, keeps) for keeps in (True, False)
    )
    assert kept == not_kept
    assert algorithm == "selsync" or kept[0] == kept[1]


def shown(world: World):
    """What is left of an engine with an exporter, and where that was."""
    model, optimizer = trainable("toy", "plain")
    engine = world.attach(model, optimizer, {"algorithm": "bsp", "metrics": {"port": 0}})
    return ref(engine._session), ref(model), engine._session.metering.url


def is_answered(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/metrics", timeout=10):
            return True
    except OSError:
        return False


def test_an_exporter_keeps_no_engine_and_ends_with_it(collected):
    left = in_process(shown, 3)
    gc.collect()
    assert [(session(), model()) for session, model, _ in left] == [(None, None)] * 3
    ports = {url.rpartition(":")[2] for *_, url in left}
    until(
        lambda: ports.isdisjoint(one.name.rpartition("-")[2] for one in threading.enumerate()), "threads end"
    )
    assert not any(is_answered(url) for *_, url in left)


SUSPENDED = """
import gc, torch, relaxcomm
gc.unfreeze()
def steps():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with relaxcomm.attach(model, optimizer, "bsp"):
        try:
            while True:
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                yield
        finally:
            print("it ends")
suspended = steps()
next(suspended)
"""


def test_a_generator_that_ends_with_the_interpreter_says_nothing():
    (done,) = run_interpreters(SUSPENDED)
    assert (done.returncode, done.stdout) == (0, "it ends\n"), done.stderr
    assert "Traceback" not in done.stderr
