"""Methods of an engine that do something for as long as a `with` block lasts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, _GeneratorContextManager, contextmanager
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WithBlock(AbstractContextManager[None]):
    """What such a method returns; dropped unused it warns, as Python does of a coroutine not awaited.

    Args:
        call: the method.
        block: what is done.
    """

    def __init__(self, call: str, block: _GeneratorContextManager[None]) -> None:
        self._call, self._block = call, block
        self._is_used = False

    def __enter__(self) -> None:
        self._is_used = True
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Do it whenever a function runs that is decorated with this."""
        self._is_used = True
        return self._block(function)

    def __del__(self) -> None:
        if not self._is_used:
            warnings.warn(
                f"{self._call}() without `with` does nothing: write `with engine.{self._call}():`",
                RuntimeWarning,
                stacklevel=2,
            )


def with_block(method: Callable[P, Iterator[None]]) -> Callable[P, WithBlock]:
    """`contextlib.contextmanager`, for methods of an engine that are written without `with` by mistake."""
    managed = contextmanager(method)

    @wraps(method)
    def begin(*args: P.args, **kwargs: P.kwargs) -> WithBlock:
        return WithBlock(method.__name__, managed(*args, **kwargs))

    return begin
