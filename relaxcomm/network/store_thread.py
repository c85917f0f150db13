"""A store that is asked from a thread of its own: who asks waits no longer than it says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from relaxcomm.network.endings import ended_at_exit

T = TypeVar("T")

_END_SECONDS = 1.0


class _Asked(Generic[T]):
    """A question, and its answer when it has come."""

    def __init__(self, question: Callable[[Any], T]) -> None:
        self._question = question
        self._answered = threading.Event()
        self._answer: T | None = None
        self._error: Exception | None = None

    def answer(self, store: Any) -> None:
        try:
            self._answer = self._question(store)
        except Exception as error:  # handed to who asked
            self._error = error
        self._answered.set()

    def wait(self, seconds: float) -> T:
        if not self._answered.wait(seconds):
            raise TimeoutError(f"the store has not answered for {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]  # None is an answer, too


class StoreThread:
    """Asks a store that may never answer, since its host is stopped or cannot be reached.

    A look at a TCPStore has no time limit of its own. The thread begins with the first question, and has
    a connection of its own: what blocks it blocks nobody else.

    Args:
        store: of torch.distributed.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._questions: SimpleQueue[_Asked[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        _asking.add(self)

    def ask(self, question: Callable[[Any], T], seconds: float) -> T:
        """What `question(store)` returns; questions are answered in order, also those that came too late.

        Raises: TimeoutError; RuntimeError if the store's host is gone.
        """
        asked = _Asked(question)
        self._questions.put(asked)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="relaxcomm-store")
            self._thread.start()
        return asked.wait(seconds)

    def close(self) -> None:
        """End the thread, if the store lets it end."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread.join(_END_SECONDS)
            self._thread = None

    def _run(self) -> None:
        store: Any = None
        while (asked := self._questions.get()) is not None:
            try:
                store = store or self._store.clone()
            except Exception as error:
                asked.answer(_Broken(error))
            else:
                asked.answer(store)


class BoundedStore:
    """A store each of whose answers is waited for so long only: one that is out of reach never answers.

    Args:
        store: of torch.distributed.
        seconds: the longest wait for an answer; then it is a RuntimeError, as of a store that is gone.
    """

    def __init__(self, store: Any, seconds: float) -> None:
        self._thread, self._seconds = StoreThread(store), seconds

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the store."""

        def ask(*arguments: Any) -> Any:
            try:
                return self._thread.ask(lambda store: getattr(store, name)(*arguments), self._seconds)
            except TimeoutError as error:
                raise RuntimeError(str(error)) from error

        return ask

    def close(self) -> None:
        """End the thread that asks."""
        self._thread.close()


_asking = ended_at_exit(StoreThread.close)


class _Broken:
    """A store that could not be reached."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error
