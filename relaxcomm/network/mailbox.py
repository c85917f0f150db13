"""Messages of one service over Gloo: numbered and sealed when they are sent, checked when they come.

A notice of one byte goes before each request, so that nobody waits with a whole buffer for each client.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.seal import Seal
from relaxcomm.network.service_messages import (
    Arrivals,
    CheckedReply,
    Header,
    RefusedError,
    Trailers,
    as_bytes,
)
from relaxcomm.network.transport import Membership
from relaxcomm.tensors import buffer_pool

REQUEST, GOODBYE, _REPLY = 1, 0, 2
FOR_EVER = timedelta(days=365)
"""A service waits for requests as long as its clients train."""


@dataclass(frozen=True)
class Channel:
    """What all services of a rank have in common.

    Args:
        membership: of the rank.
        requests, replies: Gloo groups.
        counters: of this rank's bytes, headers and tags not among them.
        seal: of the ranks.
    """

    membership: Membership
    requests: Any
    replies: Any
    counters: ByteCounters
    seal: Seal


class SentMessage:
    """A send that keeps its memory until it has gone out, and its number."""

    def __init__(self, works: Sequence[Any], memory: Sequence[Tensor], number: int) -> None:
        self._works, self._memory, self.number = works, memory, number

    def wait(self, limit: timedelta = FOR_EVER) -> None:
        """Until it has gone out."""
        for work in self._works:
            work.wait(limit)
        self._works = self._memory = ()


class Mailbox:
    """Sends and receives the messages of one service.

    Args:
        channel: over which they go.
        rule: whose they are.
        tag: of these messages alone.
        request, reply: of what shape and dtype.
    """

    def __init__(self, channel: Channel, rule: str, tag: int, request: Tensor, reply: Tensor) -> None:
        self._rank, self._tag, self._notice_tag = channel.membership.rank, 2 * tag, 2 * tag + 1
        self._incoming, self._outgoing = channel.requests, channel.replies
        self._request, self._reply = request.to("meta"), reply.to("meta")
        self._trailers = Trailers(channel.seal, tag)
        self._arrivals = Arrivals(self._trailers, self._request, rule)
        self._numbers: Counter[int] = Counter()  # of the last message to each rank
        self._order = threading.Lock()  # in which requests are numbered and sent
        self._notice = torch.zeros(1, dtype=torch.uint8)
        num_bytes = request.nbytes
        self._buffer = torch.empty(num_bytes + self._trailers.num_bytes, dtype=torch.uint8)
        self.payload = self._buffer[:num_bytes]
        """What the last message has brought."""
        self._trailer = self._buffer[num_bytes:]

    def send(self, kind: int, payload: Tensor, other: int, clock: int) -> SentMessage:
        """Send a request, or what looks like one."""
        data, trailer_bytes = as_bytes(payload), self._trailers.num_bytes
        message = buffer_pool.empty(data.numel() + trailer_bytes, torch.uint8, torch.device("cpu"))
        message[: data.numel()] = data  # first, so that it begins where numbers may
        with self._order:
            self._numbers[other] += 1
            header = Header(kind, self._rank, self._numbers[other], clock)
            message[data.numel() :] = self._trailers.make(header, payload)
            works = [
                self._incoming.send([one], other, tag)
                for one, tag in ((self._notice, self._notice_tag), (message, self._tag))
            ]
        return SentMessage(works, [message], header.number)

    def send_empty(self, kind: int, other: int, clock: int) -> SentMessage:
        """Send a kind alone."""
        return self.send(kind, torch.zeros_like(self._request, device="cpu"), other, clock)

    def wait_for_message(self, other: int) -> None:
        """Until `other` has sent one.

        Raises: RuntimeError when the connection is closed. (A receive from anybody would never end.)
        """
        notice = torch.empty_like(self._notice)  # Gloo's work does not keep it
        self._incoming.recv([notice], other, self._notice_tag).wait(FOR_EVER)

    def receive(self, other: int) -> Header | None:
        """The message that `other` has sent, whose payload then lies in `payload`.

        Returns: its header; None for one that was refused, of which a warning tells.

        Raises: RuntimeError when the connection is closed.
        """
        self._incoming.recv([self._buffer], other, self._tag).wait(FOR_EVER)
        return self._arrivals.take(self._trailer, self.payload, other)

    def reply(self, reply: Tensor, asked: Header) -> SentMessage:
        """Answer a request."""
        trailer = self._trailers.make(Header(_REPLY, self._rank, asked.number, asked.clock), reply)
        works = [self._outgoing.send([one], asked.sender, self._tag) for one in (reply, trailer)]
        return SentMessage(works, [reply, trailer], asked.number)

    def receive_reply(self, into: Tensor, other: int, number: int) -> CheckedReply:
        """What ends when the answer to a request is there, and is one."""
        trailer = torch.empty(self._trailers.num_bytes, dtype=torch.uint8)
        works = (self._outgoing.recv([one], other, self._tag) for one in (into, trailer))

        def check() -> None:
            header = self._trailers.read(trailer, as_bytes(into), other, self._reply)
            if (header.kind, header.number) != (_REPLY, number):
                raise RefusedError(f"rank {other} has answered request {header.number}, and not {number}")

        return CheckedReply(works, check)
