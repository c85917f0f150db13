"""From the configuration's `task:` to a Task."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, PydanticUserError, ValidationError, validate_call

from relaxcomm.errors import ConfigError, worded
from relaxcomm.fields.validation import closest, refusal, shown
from relaxcomm.system.time_limit import ENDINGS
from relaxcomm.tasks.task import Task
from relaxcomm.tasks.user_calls import called_function, named

BUNDLED: Mapping[str, str] = {name: f"relaxcomm.tasks.{name}:make" for name in ("digits", "charlm", "glyphs")}

_HOW = "write a bundled task's name, {name: {option: value}}, or 'package.module:make'"


@dataclass(frozen=True)
class TaskFactory:
    """A task that was found and whose options were checked, but that is not built yet.

    Args:
        name: what the user wrote.
        make: builds the task.
        options: keyword arguments of `make` beside the seed.
    """

    name: str
    make: Callable[..., Task]
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, seed: int) -> Task:
        """Build the task.

        Raises: ConfigError if `make` returns something else; whatever `make` raises.
        """
        with named("make", self.make):
            task = self.make(seed=seed, **self.options)
        if not isinstance(task, Task):
            raise ConfigError(
                f"task {shown(self.name)} returned {shown(task)}; it must return a relaxcomm.tasks.Task"
            )
        return task


def find_task(value: object, beside: Path | None = None) -> TaskFactory:
    """Find the task that `task:` names and check its options, without building it.

    Args:
        value: `"digits"`, `{"digits": {"epochs": 5}}`, or `"package.module:make"` (or that with options).
        beside: the file that names it; an error says if the module lies beside it, where none is looked for.

    Raises: ConfigError for an unknown name or a wrong option.
    """
    if value is None:
        raise ConfigError(f"'task' is missing; {_HOW}; bundled: {', '.join(BUNDLED)}")
    name, options = name_and_options(value)
    make = _import(name, beside)
    return TaskFactory(name, make, _checked(name, make, options))


def name_and_options(value: object) -> tuple[str, Mapping[Any, Any]]:
    """What `task:` says, whether there is such a task or not.

    Raises: ConfigError if it has another shape.
    """
    name: object = value
    options: object = {}
    if isinstance(value, Mapping) and len(value) == 1:
        name, options = next(iter(value.items()))
    if not isinstance(name, str) or not isinstance(options, Mapping | None):
        raise ConfigError(f"task: {shown(value)} is not allowed; {_HOW}")
    return name, options or {}


def _import(name: str, beside: Path | None) -> Callable[..., Task]:
    """The function that a task's name leads to."""
    if name not in BUNDLED and ":" not in name:
        raise ConfigError(
            f"unknown task {shown(name)}{closest(name, BUNDLED)}; your own: 'package.module:make'"
        )
    module_name, _, attribute = BUNDLED.get(name, name).partition(":")
    # A console script does not put the current directory on the path, where users keep their tasks.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"task {shown(name)}: {module_name} needs what is not installed: {error}"
            ) from error
        raise ConfigError(
            f"task {shown(name)}: no module {error.name!r} in {os.getcwd()} nor among the installed packages"
            f"{_there(module_name, beside)}{_as_module(module_name, attribute)}"
        ) from None
    except ENDINGS:
        raise
    except BaseException as error:  # a script that ends by itself is no module
        raise ConfigError(f"task {shown(name)} cannot be imported: {worded(error)}") from error
    make = getattr(module, attribute, None)
    if not callable(make):
        defined = [
            key
            for key, one in vars(module).items()
            if callable(one) and getattr(one, "__module__", "") == module_name
        ]
        raise ConfigError(
            f"task {shown(name)}: {module_name} has no function {shown(attribute)}"
            f"{closest(attribute, defined)}"
        )
    return make  # type: ignore[no-any-return]  # what it returns is checked when it is called


def _there(module: str, beside: Path | None) -> str:
    """Where the module is, if it lies beside a file in another folder."""
    if beside is None or beside.parent.resolve() == Path.cwd():
        return ""
    source = beside.parent / f"{module.replace('.', '/')}.py"
    return f"; {source} is there: start in {beside.parent}" if source.is_file() else ""


def _as_module(path: str, attribute: str) -> str:
    """How the name of a file is written as that of a module."""
    written = f"{path.removesuffix('.py').replace('/', '.')}:{attribute}"
    return f"; write {written!r}" if path.endswith(".py") else ""


def _checked(name: str, make: Callable[..., Task], options: Mapping[Any, Any]) -> dict[str, Any]:
    """The options, checked against the signature of `make` without calling it."""

    @functools.wraps(called_function(make))
    def probe(**arguments: Any) -> dict[str, Any]:
        return arguments

    if "seed" in options:
        raise ConfigError(f"task {shown(name)}: the seed is set at the top level of the configuration")
    probe.__wrapped__ = make  # whose signature it is: a partial's is its own
    try:
        # Of what it returns none: that is checked when it is there.
        hints = getattr(called_function(make), "__annotations__", {})  # which what is compiled has not
        probe.__annotations__ = {key: one for key, one in hints.items() if key != "return"}
        check = validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))(probe)
        check(seed=0, **{str(key): item for key, item in options.items()})
    except ValidationError as error:
        faults = [(one["type"], one["loc"]) for one in error.errors()]
        if ("unexpected_keyword_argument", ("seed",)) in faults:
            raise ConfigError(
                f"task {shown(name)} takes no seed, as what makes a task does; write a function such as "
                "def make(seed: int, epochs: int = 5) -> relaxcomm.tasks.Task"
            ) from None
        signature = inspect.signature(make)
        options_only = [one for one in signature.parameters.values() if one.name != "seed"]
        probe.__signature__ = signature.replace(parameters=options_only)  # type: ignore[attr-defined]
        raise refusal(error, f"task {shown(name)}", probe) from None
    except PydanticUserError as error:
        raise ConfigError(f"task {shown(name)}: its signature cannot be checked: {error.message}") from None
    except NameError as error:
        raise ConfigError(
            f"task {shown(name)}: its signature cannot be checked: {error}; import what its annotations name "
            "outside of `if TYPE_CHECKING:`"
        ) from None
    return {str(key): item for key, item in options.items()}
