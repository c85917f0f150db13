"""Services over Gloo: every rank answers requests in a thread, on process groups of their own."""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from relaxcomm.network.alarm import Alarm
from relaxcomm.network.meeting_place import MeetingPlace
from relaxcomm.network.operations import Request
from relaxcomm.network.point_to_point import ThreadedWork
from relaxcomm.network.process_groups import close_connections
from relaxcomm.network.traffic import size_bytes
from relaxcomm.network.transport import ByteCounters, Place, Service
from relaxcomm.tensors import buffer_pool

# The last two are of a rank that ends without the others: only a message wakes a thread that serves.
_REQUEST, _GOODBYE, _ENDING, _WAKE = 1, 0, 2, 3
_SLICE_SECONDS = 0.5
_END_SECONDS = 5.0  # to be woken in
_FOR_EVER = timedelta(days=365)  # a service waits for requests as long as its clients train


class Services:
    """The services of one rank and its requests to the others'.

    Args:
        place: where the ranks meet.
        counters: of this rank's bytes.
    """

    def __init__(self, place: MeetingPlace, counters: ByteCounters) -> None:
        self._membership = place.membership
        self.rank, self.world_size = place.membership.rank, place.membership.world_size
        self.counters = counters
        self.groups = [place.gloo("requests"), place.gloo("replies")]
        for group in self.groups:  # made within the place's limit
            group.set_timeout(_FOR_EVER)
        self._served: dict[Place, _Served] = {}
        _all.add(self)
        self._tags = itertools.count()  # never used again, also after all have left and serve anew

    def serve(self, place: Place, service: Service, request: Tensor, reply: Tensor) -> None:
        """Answer requests for `place`."""
        self._served[place] = _Served(self, place[0], next(self._tags), service, request, reply)

    def ask(self, place: Place, operation: Request) -> Any:
        """Send a request to those that are asked; a work whose end means that `operation.reply` is filled."""
        return self._served[place].ask(operation)

    def leave(self, limit_seconds: float, check: Callable[[], None]) -> None:
        """Say goodbye, and serve until all others have; `check` is called now and then.

        Raises: TimeoutError if nothing was heard for `limit_seconds` from those that still train.
        """
        for served in self._served.values():
            served.say_goodbye()
        for served in self._served.values():
            served.finish(limit_seconds, check)
        self._served.clear()

    def abandon(self) -> None:
        """End the threads of a rank that ends without the others."""
        for served in self._served.values():
            served.ask_to_be_woken()
        deadline = time.monotonic() + _END_SECONDS
        for served in self._served.values():
            served.join(deadline)
        if self._served:
            for group in self.groups:  # a thread that nobody wakes ends with its connections
                close_connections(group, self._membership)
        self._served.clear()

    def destroy(self) -> None:
        """Let go of the groups when all ranks have left."""
        self.groups.clear()


_all: WeakSet[Services] = WeakSet()


@atexit.register
def _abandon_all() -> None:
    """A thread that wakes in Gloo when Python is gone takes the whole process with it, by std::terminate."""
    for services in list(_all):
        services.abandon()


class _Served:
    """One service with its thread."""

    def __init__(
        self, home: Services, rule: str, tag: int, service: Service, request: Tensor, reply: Tensor
    ) -> None:
        self._home, self._rule, self._tag, self._service = home, rule, tag, service
        self._incoming, self._outgoing = home.groups
        self._request_bytes, self._reply_bytes = size_bytes(request), size_bytes(reply)
        self._local_replies: queue.Queue[Tensor] = queue.Queue()
        self._sending: dict[int, tuple[Any, Tensor]] = {}
        self._left = {home.rank} if home.world_size == 1 else set()
        self._heard = time.monotonic()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._goodbyes = ThreadedWork([], _FOR_EVER)
        self._is_ending = False
        self._ended: set[int] = set()  # without the others; they wake nobody
        self._alarm = Alarm(service.now, self._expire)
        self._waking: list[Any] = []
        self._others = [rank for rank in range(home.world_size) if rank != home.rank]
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"relaxcomm-service-{tag}")
        self._thread.start()

    def ask(self, operation: Request) -> ThreadedWork:
        works: list[Any] = []
        rows = dict(zip(operation.asked, zip(operation.tensor, operation.reply, strict=True), strict=True))
        local = rows.pop(self._home.rank, None)
        for other, (sent, _) in rows.items():
            row = sent.reshape(-1).view(torch.uint8)
            works.append(self._send(_REQUEST, row, other))
            self._home.counters.add(self._rule, sent=row.numel())
        for other, (_, into) in rows.items():
            works.append(self._outgoing.recv([into], other, self._tag))
            self._home.counters.add(self._rule, received=size_bytes(into))
        if local is not None:
            with self._lock:
                self._deliver(self._service.answer(self._home.rank, local[0]))
            works.append(_LocalReply(self._local_replies, local[1]))
        return ThreadedWork(works, _FOR_EVER)

    def say_goodbye(self) -> None:
        nothing = torch.zeros(self._request_bytes, dtype=torch.uint8)
        goodbyes = [self._send(_GOODBYE, nothing, other) for other in self._others]
        with self._lock:
            self._left.add(self._home.rank)
            self._deliver(self._service.leave(self._home.rank))
        self._goodbyes = ThreadedWork(goodbyes, _FOR_EVER)  # a rank that is stopped takes none in

    def ask_to_be_woken(self) -> None:
        self._is_ending = True
        self._alarm.set(None)
        if self._thread.is_alive():
            self._tell(_ENDING, self._others)

    def join(self, deadline: float) -> None:
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._ended >= set(self._others):
                return  # nobody is left who could wake it, now or later
            self._thread.join(0.01)

    def finish(self, limit_seconds: float, check: Callable[[], None]) -> None:
        self._heard = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(_SLICE_SECONDS)
            self._look(limit_seconds, check)
        if self._error is not None:
            raise self._error
        while not self._goodbyes.is_completed():
            with suppress(RuntimeError):  # the slice was too short, or see below
                self._goodbyes.wait(timedelta(seconds=_SLICE_SECONDS))
            self._look(limit_seconds, check)
        self._goodbyes.wait(timedelta(0))

    def _tell(self, kind: int, others: Iterable[int]) -> None:
        """Send a kind alone, to those that can be reached."""
        nothing = torch.zeros(self._request_bytes, dtype=torch.uint8)
        for other in others:
            with suppress(RuntimeError, ValueError):  # its process or the group is gone
                self._waking.append(self._send(kind, nothing, other))

    def _look(self, limit_seconds: float, check: Callable[[], None]) -> None:
        check()
        if time.monotonic() - self._heard > limit_seconds:
            if silent := sorted(set(self._others) - self._left):
                raise TimeoutError(
                    f"nothing heard of ranks {silent} for {limit_seconds:g} s, and they still train"
                )
            raise TimeoutError(
                f"all others have finished, but some of {self._others} took in no goodbye for "
                f"{limit_seconds:g} s: is a process stopped?"
            )

    def _send(self, kind: int, payload: Tensor, other: int) -> Any:
        message = buffer_pool.empty(payload.numel() + 1, torch.uint8, torch.device("cpu"))
        message[-1] = kind  # behind, so that the payload begins where numbers may
        message[:-1] = payload
        return _Kept(self._incoming.send([message], other, self._tag), message)

    def _run(self) -> None:
        try:
            buffer = torch.empty(self._request_bytes + 1, dtype=torch.uint8)
            while len(self._left - {self._home.rank}) < len(self._others):
                arriving = self._incoming.recv_anysource([buffer], self._tag)
                arriving.wait()
                client = arriving._source_rank()
                self._heard = time.monotonic()
                if buffer[-1] == _ENDING:
                    self._ended.add(client)
                    self._tell(_WAKE, [client])
                if self._is_ending:
                    return
                if buffer[-1] in (_ENDING, _WAKE):
                    continue
                with self._lock:
                    if buffer[-1] == _GOODBYE:
                        self._left.add(client)
                        self._deliver(self._service.leave(client))
                    else:
                        self._home.counters.add(self._rule, received=self._request_bytes)
                        self._deliver(self._service.answer(client, buffer[:-1]))
            for work, _ in self._sending.values():
                work.wait()
        except Exception as error:  # handed to the rank's own thread
            self._error = error

    def _expire(self, due: float) -> None:
        try:
            with self._lock:
                if self._service.due() == due and not self._is_ending:
                    self._deliver(self._service.expire())
        except Exception as error:  # handed to the rank's own thread
            self._error = error

    def _deliver(self, replies: Iterable[tuple[int, Tensor]]) -> None:
        self._alarm.set(self._service.due())
        for client, reply in replies:
            if client == self._home.rank:
                self._local_replies.put(reply)
                continue
            self._home.counters.add(self._rule, sent=size_bytes(reply))
            # A client asks again only after it has the answer, so the one before has gone out.
            work = self._outgoing.send([reply], client, self._tag)
            self._sending[client] = (work, reply)


class _Kept:
    """A send that keeps its buffer."""

    def __init__(self, work: Any, buffer: Tensor) -> None:
        self._work, self._buffer = work, buffer

    def wait(self, limit: timedelta = _FOR_EVER) -> None:
        self._work.wait(limit)


class _LocalReply:
    """This rank's answer to itself."""

    def __init__(self, answers: queue.Queue[Tensor], into: Tensor) -> None:
        self._answers, self._into = answers, into

    def wait(self, limit: timedelta) -> None:
        self._into.copy_(self._answers.get(timeout=limit.total_seconds()))
