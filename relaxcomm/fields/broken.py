"""What stands for a plug-in's class that cannot be made, so that those beside it can be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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

    __mro_entries__ = __or__ = __ror__ = __instancecheck__ = __subclasscheck__ = __call__

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
def broken_kept() -> Iterator[None]:
    """While a package is imported: one broken class must not take those beside it down."""
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)
