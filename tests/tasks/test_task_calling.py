"""What goes wrong in a task's own functions is told with its place and with whose it is."""

import functools
import itertools
import os

import pytest

from relaxcomm import config
from relaxcomm.cli.exit_codes import describe
from relaxcomm.errors import ConfigError
from relaxcomm.training.trainer import train

JOB = """
from dataclasses import replace
from relaxcomm.tasks.digits import make as digits


def parse(text):
    return float(text)  # PARSE


def make(seed: int, bad: str = "make"):
    if bad == "make":
        parse("one")  # MAKE
    task = digits(seed, epochs=1, hidden=[8])
    if bad == "no epochs":
        return replace(task, epochs=0)  # NO EPOCHS

    def loss(model, batch):
        if bad == "loss":
            parse("two")  # LOSS
        if bad == "no tensor":
            return 0.5
        return task.loss(model, batch)

    def evaluate(model):
        if bad == "evaluate":
            parse("three")  # EVALUATE
        return "four" if bad == "no number" else task.evaluate(model)

    return replace(task, loss=loss, evaluate=evaluate)
"""
_numbers = itertools.count()


def line(mark: str) -> int:
    return next(number for number, text in enumerate(JOB.splitlines(), 1) if text.endswith(mark))


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains the job with something wrong in it; returns the error and the job's file."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    name = f"calling_{next(_numbers)}"  # modules stay imported
    file = tmp_path / f"{name}.py"
    file.write_text(JOB)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(bad):
        task = {f"{name}:make": {"bad": bad}}
        with pytest.raises(ValueError, match=r".") as caught:
            train(config.load({"algorithm": "bsp", "task": task, "backend": "gloo"}))
        return caught.value, file

    return run


@pytest.mark.parametrize("what", ["make", "loss", "evaluate"])
def test_an_error_says_where_it_arose_and_in_which_of_the_tasks_functions(trained, what):
    error, file = trained(what)
    said = describe(error)
    assert said.startswith("ValueError: could not convert string to float: ")
    assert f"(at {file}:{line('# PARSE')}, in parse)" in said
    assert said.endswith(f"; in the task's {what}, {file}:{line(f'# {what.upper()}')}")


def test_so_does_an_error_of_the_task_that_make_builds(trained):
    error, file = trained("no epochs")
    assert isinstance(error, ConfigError)
    assert describe(error).startswith("Task.epochs is 0; it must be")
    assert describe(error).endswith(f"; in the task's make, {file}:{line('# NO EPOCHS')}")


@pytest.mark.parametrize(
    ("bad", "said", "how"),
    [
        ("no number", "the task's evaluate, at {}:{}, returned 'four'", "it must be a number"),
        ("no tensor", "the task's loss, at {}:{}, returned 0.5", "it must be a tensor of one entry"),
    ],
)
def test_what_is_returned_is_looked_at(trained, bad, said, how):
    error, file = trained(bad)
    assert isinstance(error, ConfigError)
    function = "def evaluate(model):" if "evaluate" in said else "def loss(model, batch):"
    assert said.format(file, line(function)) in str(error)
    assert how in str(error)


def test_functions_that_are_no_plain_ones_have_a_place_too(tmp_path):
    from relaxcomm.tasks.user_calls import checked_measure

    class Called:
        def __call__(self, model):
            return None

    here = os.path.basename(__file__)
    for function in (functools.partial(describe), Called(), functools.cache(describe)):
        with pytest.raises(ConfigError, match=r"at .*\.py:\d+, returned None") as caught:
            checked_measure(None, function)
        assert (here in str(caught.value)) == isinstance(function, Called)
