"""From `task:` to a Task: names, options, own modules, and what is said when they are wrong."""

import dataclasses
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from relaxcomm.errors import ConfigError
from relaxcomm.tasks import Task
from relaxcomm.tasks.task_loader import find_task


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A user's package in the current directory."""
    package = tmp_path / "jobs_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(
        textwrap.dedent(
            """
            from __future__ import annotations
            import functools
            from typing import TYPE_CHECKING
            from relaxcomm.tasks.digits import make as digits
            if TYPE_CHECKING:
                from relaxcomm import Task
            def annotated(seed: int, like: Task | None = None):
                return digits(seed)
            def make(seed: int, epochs: int = 3):
                return digits(seed, epochs=epochs, hidden=[8])
            def later(seed: int, epochs: int) -> Task:
                return digits(seed, epochs=epochs, hidden=[8])
            partial = functools.partial(later, epochs=3)
            class Maker:
                def __call__(self, seed: int, epochs: int = 3) -> Task:
                    return later(seed, epochs)
            maker = Maker()
            def nothing(seed):
                return 5
            """
        )
    )
    (package / "broken.py").write_text("1 / 0")
    (package / "skipped.py").write_text("from pytest import skip\nskip(allow_module_level=True)")
    (package / "needy.py").write_text("import a_module_that_nobody_has")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield "jobs_of_mine"
    for name in [name for name in sys.modules if name.startswith("jobs_of_mine")]:
        del sys.modules[name]


def test_bundled_task_with_options():
    task = find_task({"digits": {"epochs": 2, "hidden": [16, 8], "learning_rate": 1}}).build(seed=0)
    assert isinstance(task, Task)
    assert task.epochs == 2
    assert [tuple(p.shape) for p in task.model.parameters() if p.dim() == 2] == [(16, 64), (8, 16), (10, 8)]
    assert task.optimizer.param_groups[0]["lr"] == 1


@pytest.mark.parametrize("value", ["{}.job:make", {"{}.job:make": None}, {"{}.job:make": {"epochs": 3}}])
def test_own_task_in_the_current_directory(own_module, value):
    if isinstance(value, str):
        value = value.format(own_module)
    else:
        value = {key.format(own_module): options for key, options in value.items()}
    assert find_task(value).build(seed=0).epochs == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "'task' is missing.*bundled: digits"),
        ("digit", "unknown task 'digit'; did you mean 'digits'"),
        (3, "3 is not allowed; write a bundled task's name"),
        ({"digits": 3}, "is not allowed; write"),
        ({"digits": {}, "other": {}}, "is not allowed; write"),
        ({"digits": {"lr": 1}}, r"no parameter 'lr'; it takes: learning_rate=0\.05"),
        ({"digits": {"epochs": "3"}}, "epochs = '3' is not allowed"),
        ({"digits": {"epochs": 0}}, "epochs = 0 is not allowed.*write a whole number, 1 or more"),
        ({"digits": {"hidden": [4, 0]}}, "hidden.1 = 0 is not allowed"),
        ({"digits": {"seed": 3}}, "the seed is set at the top level"),
        ("no_such_module:make", "no module 'no_such_module'"),
        ("jobs_of_mine.nowhere:make", "no module 'jobs_of_mine.nowhere'"),
        ("jobs_of_mine.job:mak", "no function 'mak'; did you mean 'make'"),
        ("math:sqrt", "'math:sqrt' takes no seed, as what makes a task does; write a function"),
        ("jobs_of_mine.broken:make", "cannot be imported: ZeroDivisionError"),
        ("jobs_of_mine.skipped:make", "cannot be imported: Skipped"),
        ("jobs_of_mine.needy:make", "needs what is not installed.*a_module_that_nobody_has"),
        ("jobs_of_mine/needy.py:make", "no module .*; write 'jobs_of_mine.needy:make'$"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_built(own_module, value, message):
    with pytest.raises(ConfigError, match=message):
        find_task(value)


def test_a_module_beside_the_configuration_is_pointed_to(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/only_beside.py").touch()
    monkeypatch.chdir(tmp_path)
    there = "no module 'only_beside' in .*; sub/only_beside.py is there: start in sub"
    with pytest.raises(ConfigError, match=there):
        find_task("only_beside:make", Path("sub/my.yaml"))


@pytest.mark.parametrize("what", ["later", "partial", "maker"])
def test_whatever_is_called_makes_a_task_and_its_options_are_checked(own_module, what):
    assert find_task({f"{own_module}.job:{what}": {"epochs": 2}}).build(seed=0).epochs == 2
    with pytest.raises(ConfigError, match="epochs = 'two' is not allowed"):
        find_task({f"{own_module}.job:{what}": {"epochs": "two"}})


def test_an_annotation_that_is_not_imported_is_told(own_module):
    with pytest.raises(ConfigError, match="name 'Task' is not defined; import what its annotations name"):
        find_task(f"{own_module}.job:annotated")


def test_a_task_of_another_type_is_refused(own_module):
    with pytest.raises(ConfigError, match=r"returned 5; it must return a relaxcomm\.tasks\.Task"):
        find_task(f"{own_module}.job:nothing").build(seed=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda task: {"optimizer": torch.optim.LBFGS(task.model.parameters())}, "is LBFGS.*AdamW"),
        (lambda task: {"optimizer": []}, "is an empty list; give an optimizer"),
        (lambda task: {"optimizer": [task.optimizer, 3]}, "Task.optimizer holds 3; give a torch.optim"),
        (lambda task: {"scheduler": ReduceLROnPlateau(task.optimizer)}, "is ReduceLROnPlateau, which is"),
        (lambda task: {"scheduler": [len]}, "Task.scheduler holds <built-in.*; give one of torch.optim"),
        (lambda task: {"train_data": DataLoader(task.train_data)}, r"is a DataLoader; .*\(loader\.dataset\)"),
    ],
)
def test_what_a_job_cannot_step_or_share_out_is_refused(wrong, message):
    task = find_task({"digits": {"hidden": [4]}}).build(seed=0)
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(task, **wrong(task))


def test_task_refuses_numbers_that_are_not_positive():
    task = find_task({"digits": {"hidden": [4]}}).build(seed=0)
    with pytest.raises(ConfigError, match=r"Task\.epochs is 0"):
        Task(
            model=task.model,
            optimizer=task.optimizer,
            train_data=task.train_data,
            loss=task.loss,
            evaluate=task.evaluate,
            epochs=0,
        )
