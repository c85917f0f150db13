"""What stands for a plug-in's class that cannot be made or imported, so that those beside it can be used."""

from __future__ import annotations

import importlib.machinery
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from relaxcomm.errors import PluginError, worded

T = TypeVar("T")
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


def without_broken(package: str, load: Callable[[], T]) -> T:
    """What `load` returns, also where a class or a module of the package that it imports is broken.

    A module is left out only where its error would end the import: what the package itself catches, as of an
    optional module, stays with the package.

    Args:
        package: its top-level name. That module itself must be whole.
        load: imports it. Called anew for each module that is left out.

    Warns: of a module that is left out and of which nothing was asked, as one with side effects alone.
    """
    token, modules = _kept.set(True), _Modules(package)
    sys.meta_path.insert(0, modules)
    try:
        while True:
            try:
                return load()
            except (Exception, SystemExit) as error:
                if not modules.leave_out(error):
                    raise
    finally:
        sys.meta_path.remove(modules)
        _kept.reset(token)
        modules.forget()


class _Modules(MetaPathFinder):
    """Finds a package's own modules, those that are left out as ones whose every name is `Broken`."""

    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."
        self._failed: list[tuple[str, BaseException]] = []
        self._left_out: dict[str, BaseException] = {}
        self._asked: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = partial(self._run, spec.loader.exec_module)
            spec.loader.exec_module = run  # type: ignore[method-assign]  # each spec has a loader of its own
        return spec

    def _run(self, run: Callable[[ModuleType], None], module: ModuleType) -> None:
        name = module.__name__
        if name in self._left_out:
            module.__getattr__ = partial(self._missing, name)  # type: ignore[method-assign]
            with suppress(Exception, SystemExit):  # what stands before the error is usable
                run(module)
            return
        try:
            run(module)
        except (Exception, SystemExit) as error:
            self._failed.append((name, error))
            raise

    def leave_out(self, error: BaseException) -> bool:
        """Leave out the module whose error has ended an import, the innermost; whether there is one."""
        name = next((name for name, of in self._failed if of is error and name not in self._left_out), None)
        if name is not None:
            self._left_out[name] = error
        return name is not None

    def _missing(self, module: str, name: str) -> Broken:
        if name.startswith("__"):
            raise AttributeError(name)
        self._asked.add(module)
        error = self._left_out[module]
        return Broken(name, module, f"{module} cannot be imported: {worded(error)}", error)

    def forget(self) -> None:
        """Whoever imports a module that was left out gets its error."""
        for name, error in self._left_out.items():
            sys.modules.pop(name, None)
            if name not in self._asked:
                warnings.warn(f"{name} is left out, it cannot be imported: {worded(error)}", stacklevel=4)
