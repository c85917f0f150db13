"""Methods of an engine that do something for as long as a `with` block lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import _GeneratorContextManager
from functools import wraps
from inspect import GEN_CREATED, getgeneratorstate
from typing import Any, ParamSpec, TypeVar

from relaxcomm.errors import UsageError
from relaxcomm.system.warn import warn

P = ParamSpec("P")
T = TypeVar("T")


class WithBlock(_GeneratorContextManager[None]):
    """What such a method returns; dropped unused it warns, as Python does of a coroutine not awaited."""

    _is_used = True  # until its arguments have been taken

    def __init__(self, method: Callable[..., Iterator[None]], args: Any, kwargs: Any) -> None:
        super().__init__(method, args, kwargs)  # type: ignore[arg-type]  # contextlib, too, takes any iterator
        self._is_used, self._call = False, method.__name__

    def __enter__(self) -> None:
        self._use()
        return super().__enter__()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:  # type: ignore[override]
        """Do it whenever a function runs that is decorated with this."""
        self._use()
        return super().__call__(function)

    def __del__(self) -> None:
        if not self._is_used:
            warn(
                f"{self._call}() without `with` does nothing: write `with engine.{self._call}():`",
                RuntimeWarning,
            )

    def _use(self) -> None:
        """Refuse what was entered before, as `contextlib.contextmanager` is for one use."""
        if getgeneratorstate(self.gen) != GEN_CREATED:
            raise UsageError(
                f"this {self._call}() was entered before, and lasts for one `with` block; call it anew for "
                f"each: `with engine.{self._call}():`"
            )
        self._is_used = True


def with_block(method: Callable[P, Iterator[None]]) -> Callable[P, WithBlock]:
    """`contextlib.contextmanager`, for methods of an engine that are written without `with` by mistake."""
    made: Any = method

    @wraps(method)
    def begin(*args: P.args, **kwargs: P.kwargs) -> WithBlock:
        return WithBlock(made, args, kwargs)

    return begin
