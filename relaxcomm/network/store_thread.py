"""A store that is asked from a thread of its own: who asks waits no longer than it says."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from relaxcomm.network.endings import ended_at_exit

T = TypeVar("T")
Questions: TypeAlias = "SimpleQueue[tuple[Callable[[Any], Any], Future[Any]] | None]"

_END_SECONDS = 1.0


class StoreThread:
    """Asks a store that may never answer, since its host is stopped or cannot be reached.

    A look at a TCPStore has no time limit of its own. The thread has a connection of its own, so what
    blocks it blocks nobody else. It connects at once: torch looks up the host's name when it does, which
    takes seconds where a name server is slow, and questions are asked when a peer has been lost.

    Args:
        store: of torch.distributed.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._thread, self._questions = self._begin()
        _asking.add(self)

    def ask(self, question: Callable[[Any], T], seconds: float) -> T:
        """What `question(store)` returns; questions are answered in order, also those that came too late.

        Raises: TimeoutError; RuntimeError if the store's host is gone.
        """
        if self._thread is None:
            self._thread, self._questions = self._begin()
        answer: Future[T] = Future()
        self._questions.put((question, answer))
        if wait([answer], seconds).not_done:
            raise TimeoutError(f"the store has not answered for {seconds:g} s")
        return answer.result()

    def close(self) -> None:
        """End the thread, if the store lets it end; another question begins another."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread.join(_END_SECONDS)
            self._thread = None

    def _begin(self) -> tuple[threading.Thread | None, Questions]:
        questions: Questions = SimpleQueue()
        thread = threading.Thread(
            target=_answer_all, args=(self._store, questions), daemon=True, name="relaxcomm-store"
        )
        thread.start()
        weakref.finalize(self, questions.put, None)
        return thread, questions


def _answer_all(shared: Any, questions: Questions) -> None:
    store = None
    with suppress(Exception):  # who asks is told, if it still cannot be reached then
        store = shared.clone()
    while (asked := questions.get()) is not None:
        question, answer = asked
        try:
            store = shared.clone() if store is None else store
            answer.set_result(question(store))
        except Exception as error:  # handed to who asked
            answer.set_exception(error)


class BoundedStore:
    """A store each of whose answers is waited for so long only: one that is out of reach never answers.

    Args:
        store: of torch.distributed.
        seconds: the longest wait for an answer; then it is a RuntimeError, as of a store that is gone.
    """

    def __init__(self, store: Any, seconds: float) -> None:
        self._thread, self.seconds = StoreThread(store), seconds

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the store."""

        def ask(*arguments: Any) -> Any:
            try:
                return self._thread.ask(lambda store: getattr(store, name)(*arguments), self.seconds)
            except TimeoutError as error:
                raise RuntimeError(str(error)) from error

        return ask

    def close(self) -> None:
        """End the thread that asks."""
        self._thread.close()


_asking = ended_at_exit(StoreThread.close)
