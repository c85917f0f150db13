"""What stands for a plug-in's class that cannot be made or imported, so that those beside it can be used."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any, NoReturn

from relaxcomm.errors import PluginError, worded

_kept: ContextVar[bool] = ContextVar("kept", default=False)


class Broken:
    """A name whose class is not there; whatever uses it raises why.

    Args:
        name: of the class.
        module: in which it should be.
        reason: why it is not there.
        error: its cause.
    """

    def __init__(self, name: str, module: str, reason: str, error: BaseException) -> None:
        self._text = f"{name} of {module} cannot be used: {reason}"
        self.__module__, self._error, self._reason = module, error, reason

    def why(self) -> PluginError:
        """The error of who asks for it by its name, to be raised as it is returned."""
        refusal = PluginError(self._reason)
        refusal.__cause__ = self._error
        return refusal

    def _refuse(self) -> NoReturn:
        raise PluginError(self._text) from self._error

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        self._refuse()

    def __mro_entries__(self, bases: tuple[object, ...]) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse()


def or_broken(cls: type, error: Exception) -> Any:
    """What stands for a class that cannot be made, while a package is imported; else its error is raised."""
    if not _kept.get():
        raise error
    reason = str(error) if isinstance(error, PluginError) else worded(error)
    return Broken(cls.__name__, cls.__module__, reason, error)


@contextmanager
def broken_kept(package: str) -> Iterator[None]:
    """Within, a class or a module of a package that is broken does not take the package down.

    Args:
        package: its top-level name. That module itself must be whole.
    """
    token, finder = _kept.set(True), _Modules(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _kept.reset(token)


class _Modules(MetaPathFinder):
    """Finds a package's own modules, those that cannot be run as ones whose every name is `Broken`."""

    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = partial(_run, spec.loader.exec_module)
            spec.loader.exec_module = run  # type: ignore[method-assign]  # each spec has a loader of its own
        return spec


def _run(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        run(module)
    except (Exception, SystemExit) as error:
        module.__getattr__ = partial(_missing, module.__name__, error)  # type: ignore[method-assign]


def _missing(module: str, error: BaseException, name: str) -> Broken:
    if name.startswith("__"):
        raise AttributeError(name)
    return Broken(name, module, f"{module} cannot be imported: {worded(error)}", error)
