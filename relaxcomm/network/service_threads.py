"""A service over Gloo with the threads that answer for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch import Tensor

from relaxcomm.network.alarm import Alarm
from relaxcomm.network.mailbox import FOR_EVER, GOODBYE, REQUEST, Channel, Mailbox, SentMessage
from relaxcomm.network.operations import Request
from relaxcomm.network.point_to_point import ThreadedWork
from relaxcomm.network.service_messages import Header
from relaxcomm.network.transport import Service

_SLICE_SECONDS = 0.5


class ServiceThreads:
    """One service of a rank, with a thread that answers for each of the others.

    A thread ends when its client has said goodbye, or with the connection, whoever closes it.

    Args:
        channel: over which messages go.
        rule: whose bytes they are.
        tag: of its messages alone.
        service: that answers.
        request, reply: of what shape and dtype.
    """

    def __init__(
        self, channel: Channel, rule: str, tag: int, service: Service, request: Tensor, reply: Tensor
    ) -> None:
        self._rule, self._service = rule, service
        self._rank, self._counters = channel.membership.rank, channel.counters
        self._mailbox, self._clock = Mailbox(channel, rule, tag, request, reply), 0
        self._asked: dict[int, Header] = {}  # the last request of each rank
        self._local_replies: queue.Queue[Tensor] = queue.Queue()
        self._sending: dict[int, SentMessage] = {}
        self._left: set[int] = set()
        self._heard = time.monotonic()
        self._lock = threading.Lock()
        self._receiving = threading.Lock()  # one message at a time is in the mailbox
        self._error: Exception | None = None
        self._goodbyes = ThreadedWork([], FOR_EVER)
        self._ending = threading.Event()
        self._alarm = Alarm(service.now, self._expire)
        self._alarm.set(service.due())
        self._others = [rank for rank in range(channel.membership.world_size) if rank != self._rank]
        self._threads = [
            threading.Thread(
                target=self._run, args=(rank,), daemon=True, name=f"relaxcomm-service-{tag}-{rank}"
            )
            for rank in self._others
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, operation: Request, clock: int) -> ThreadedWork:
        """Send a request to those that are asked; a work whose end means that replies are there."""
        works: list[Any] = []
        self._clock = clock
        rows = dict(zip(operation.asked, zip(operation.tensor, operation.reply, strict=True), strict=True))
        local = rows.pop(self._rank, None)
        for other, (sent, _) in rows.items():
            works.append(self._mailbox.send(REQUEST, sent, other, clock))
            self._counters.add(self._rule, sent=sent.nbytes)
        numbers = {other: work.number for other, work in zip(rows, works, strict=True)}
        for other, (_, into) in rows.items():
            works.append(self._mailbox.receive_reply(into, other, numbers[other]))
            self._counters.add(self._rule, received=into.nbytes)
        if local is not None:
            with self._lock:
                self._deliver(self._service.answer(self._rank, local[0]))
            works.append(_LocalReply(self._local_replies, local[1]))
        return ThreadedWork(works, FOR_EVER)

    def say_goodbye(self) -> None:
        """Tell all others that this rank asks nothing more."""
        goodbyes = [self._mailbox.send_empty(GOODBYE, other, self._clock) for other in self._others]
        with self._lock:
            self._deliver(self._service.leave(self._rank))
        self._goodbyes = ThreadedWork(goodbyes, FOR_EVER)  # a rank that is stopped takes none in

    def give_up(self) -> None:
        """Leave the service as it is now; the threads end with the connections."""
        self._end()
        self._service.give_up()

    def _end(self) -> None:
        """Call the service no more."""
        with self._lock:
            self._ending.set()
        self._alarm.set(None)

    def join(self, deadline: float) -> None:
        """Wait for the threads."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def finish(self, limit_seconds: float, check: Callable[[], None]) -> None:
        """Serve until all others have said goodbye; `check` is called now and then.

        Raises: TimeoutError if nothing was heard for `limit_seconds` from those that still train.
        """
        self._heard = time.monotonic()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_SLICE_SECONDS)
                self._look(limit_seconds, check)
        if self._error is not None:
            raise self._error
        while not self._goodbyes.is_completed():
            with suppress(RuntimeError):  # the slice was too short, or see below
                self._goodbyes.wait(timedelta(seconds=_SLICE_SECONDS))
            self._look(limit_seconds, check)
        self._goodbyes.wait(timedelta(0))
        self._end()  # it may ring again and again

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

    def _run(self, client: int) -> None:
        try:
            while client not in self._left:
                self._mailbox.wait_for_message(client)
                with self._receiving:
                    header = self._mailbox.receive(client)
                    if header is not None:
                        self._take_in(header, self._mailbox.payload)
            if client in self._sending:
                self._sending[client].wait()
        except Exception as error:  # handed to the rank's own thread
            if not self._ending.is_set():
                self._error = self._error or error

    def _expire(self, due: float) -> None:
        try:
            with self._lock:
                if self._service.due() == due and not self._ending.is_set():
                    self._deliver(self._service.expire())
        except Exception as error:  # handed to the rank's own thread
            self._error = error

    def _take_in(self, header: Header, payload: Tensor) -> None:
        """Do what a message asks for, which was checked."""
        client, self._heard = header.sender, time.monotonic()
        with self._lock:
            if self._ending.is_set():
                return
            if header.kind == GOODBYE:
                self._left.add(client)
                self._deliver(self._service.leave(client))
            else:
                self._counters.add(self._rule, received=payload.nbytes)
                self._asked[client] = header
                self._deliver(self._service.answer(client, payload))

    def _deliver(self, replies: Iterable[tuple[int, Tensor]]) -> None:
        self._alarm.set(self._service.due())
        for client, reply in replies:
            if client == self._rank:
                self._local_replies.put(reply)
                continue
            self._counters.add(self._rule, sent=reply.nbytes)
            # A client asks again only after it has the answer, so the one before has gone out.
            self._sending[client] = self._mailbox.reply(reply, self._asked[client])


class _LocalReply:
    """This rank's answer to itself."""

    def __init__(self, answers: queue.Queue[Tensor], into: Tensor) -> None:
        self._answers, self._into = answers, into

    def wait(self, limit: timedelta) -> None:
        self._into.copy_(self._answers.get(timeout=limit.total_seconds()))
