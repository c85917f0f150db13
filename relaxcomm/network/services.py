"""Services over Gloo: every rank answers requests in threads, on process groups of their own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.endings import ended_at_exit
from relaxcomm.network.mailbox import FOR_EVER, Channel
from relaxcomm.network.operations import Request
from relaxcomm.network.process_groups import close_connections
from relaxcomm.network.rendezvous import Rendezvous, set_limit
from relaxcomm.network.seal import Seal
from relaxcomm.network.service_threads import ServiceThreads
from relaxcomm.network.staging import Staging, is_staged
from relaxcomm.network.streams import Streams
from relaxcomm.network.transport import Service, ServiceKey

_END_SECONDS = 5.0  # for threads whose connections are closed


class Services:
    """The services of one rank and its requests to the others'.

    Args:
        rendezvous: where the ranks meet.
        seal: of the ranks.
        streams: of the device that requests may come from.
        check: raises CommunicationError when what the device makes means nothing any more.
    """

    def __init__(
        self, rendezvous: Rendezvous, seal: Seal, streams: Streams, check: Callable[[], None]
    ) -> None:
        self._rendezvous, self._seal = rendezvous, seal
        self._streams, self._check = streams, check
        self._channel: Channel | None = None
        self._staging: Staging | None = None
        self._served: dict[ServiceKey, ServiceThreads] = {}
        _serving.add(self)
        self._tags = itertools.count()  # never used again, also after all have left and serve anew

    def serve(
        self, key: ServiceKey, service: Service, request: Tensor, reply: Tensor, counters: ByteCounters
    ) -> None:
        """Answer requests for `key`; bytes are counted without headers and tags."""
        if self._channel is None:
            requests, replies = self._rendezvous.gloo("requests"), self._rendezvous.gloo("replies")
            for group in (requests, replies):  # made within the limit of the rendezvous
                set_limit(group, FOR_EVER)
            self._channel = Channel(self._rendezvous.membership, requests, replies, counters, self._seal)
        self._served[key] = ServiceThreads(self._channel, key[0], next(self._tags), service, request, reply)

    @property
    def is_serving(self) -> bool:
        """Whether there are any, of which not all ranks have taken leave."""
        return bool(self._served)

    def ask(self, key: ServiceKey, operation: Request, clock: int) -> tuple[Any, Tensor]:
        """Send a request to those that are asked, in a step.

        Returns: a work, and what is filled when it has ended: a tensor like `operation.reply`, on the host.
        """
        served = self._served[key]
        if not is_staged(operation):
            return served.ask(operation, clock), operation.reply
        if self._staging is None:
            self._staging = Staging(self._streams, self._check)
        return self._staging.ask(operation, lambda on_host: served.ask(on_host, clock))

    def leave(self, limit_seconds: float, check: Callable[[], None]) -> None:
        """Say goodbye, and serve until all others have; `check` is called now and then.

        Raises: TimeoutError if nothing was heard for `limit_seconds` from those that still train.
        """
        for served in self._served.values():
            served.say_goodbye()
        for served in self._served.values():
            served.finish(limit_seconds, check)
        self._served.clear()

    def give_up(self) -> None:
        """Answer nobody any more, without the others; who waits for an answer is told so at once."""
        if self._staging is not None:
            self._staging.end()
            self._staging = None
        for served in self._served.values():
            served.give_up()
        if self._served and self._channel is not None:
            for group in (self._channel.requests, self._channel.replies):
                close_connections(group, self._channel.membership)
        deadline = time.monotonic() + _END_SECONDS
        for served in self._served.values():
            served.join(deadline)
        self._served.clear()
        self._channel = None


_serving = ended_at_exit(Services.give_up)
