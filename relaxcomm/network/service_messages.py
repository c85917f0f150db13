"""What stands behind each message to and from a service, and is checked before the message is used."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from relaxcomm.network.seal import Seal
from relaxcomm.network.secret import TAG_BYTES

LOGGER = logging.getLogger("relaxcomm")

_MOST_DIMENSIONS = 4
_LAYOUT = struct.Struct("<hhiqQ4Q16s8s")


class RefusedError(RuntimeError):
    """A message is not what it should be, and is not used."""


@dataclass(frozen=True)
class Header:
    """What a message says of itself.

    Args:
        kind: a request, a goodbye or an answer, see `Mailbox`.
        sender: the rank.
        number: of a request, counted for each receiver from 1; an answer has that of its request.
        clock: the step in which the sender asks; of an answer, the one in which it was asked.
    """

    kind: int
    sender: int
    number: int
    clock: int


class Trailers:
    """Makes and checks what stands behind the payloads of one service's messages.

    Args:
        seal: of the ranks that take part.
        service: its number among those of the rank.
    """

    def __init__(self, seal: Seal, service: int) -> None:
        self._seal, self._purpose = seal, f"service {service}"
        self.num_bytes = _LAYOUT.size + (TAG_BYTES if seal.secret is not None else 0)
        """Bytes of a trailer."""

    def make(self, header: Header, payload: Tensor) -> Tensor:
        """The trailer, `[num_bytes]` uint8, of a payload."""
        sizes = (*payload.shape, *(0,) * (_MOST_DIMENSIONS - payload.ndim))
        packed = _LAYOUT.pack(
            header.kind,
            payload.ndim,
            header.sender,
            header.clock,
            header.number,
            *sizes,
            str(payload.dtype).encode(),
            self._seal.session,
        )
        tag = self._seal.tag(self._purpose, packed, _memory(as_bytes(payload)))
        return torch.frombuffer(bytearray(packed + tag), dtype=torch.uint8)

    def read(self, trailer: Tensor, payload: Tensor, sender: int, like: Tensor) -> Header:
        """What a trailer says.

        Args:
            trailer: that came.
            payload: that came, `[n]` uint8.
            sender: the rank at the other end of the connection.
            like: a tensor of the shape and dtype that the payload must have.

        Raises: RefusedError if it is not that of this payload, sender or session.
        """
        data = _memory(trailer)
        packed, tag = bytes(data[: _LAYOUT.size]), bytes(data[_LAYOUT.size :])
        if not self._seal.check(tag, self._purpose, packed, _memory(payload)):
            raise RefusedError("its tag was not made with membership.secret for this run")
        kind, dimensions, rank, clock, number, *sizes, dtype, session = _LAYOUT.unpack(packed)
        if session != self._seal.session:
            raise RefusedError("it is of another run or generation")
        if rank != sender:
            raise RefusedError(f"it says that rank {rank} sent it")
        shape, named = tuple(sizes[:dimensions]), dtype.rstrip(b"\0").decode(errors="replace")
        if (shape, named) != (tuple(like.shape), str(like.dtype)):
            raise RefusedError(
                f"it holds {list(shape)} {named}, where {list(like.shape)} {like.dtype} are exchanged"
            )
        return Header(kind, rank, number, clock)


class Arrivals:
    """Takes in the requests that are what they should be, each once, and warns of others.

    Args:
        trailers: of the service.
        like: a tensor of the shape and dtype that a request must have.
        rule: whose service it is, for the warning.
    """

    def __init__(self, trailers: Trailers, like: Tensor, rule: str) -> None:
        self._trailers, self._like, self._rule = trailers, like, rule
        self._last: dict[int, int] = {}
        self._warned: set[int] = set()

    def take(self, trailer: Tensor, payload: Tensor, sender: int) -> Header | None:
        """What a message says of itself; None if it was refused, of which a warning tells once a rank."""
        try:
            header = self._trailers.read(trailer, payload, sender, self._like)
            if header.number <= self._last.get(sender, 0):
                raise RefusedError(f"message {header.number} has come before")
        except RefusedError as error:
            if sender not in self._warned:
                self._warned.add(sender)
                LOGGER.warning("rule %s: a message of rank %d was refused: %s", self._rule, sender, error)
            return None
        self._last[sender] = header.number
        return header


class CheckedReply:
    """A work that ends when an answer has come, and fails if it is not that of the request.

    Args:
        works: whose ends bring the payload and the trailer.
        check: raises RefusedError.
    """

    def __init__(self, works: Iterator[Any], check: Any) -> None:
        self._works, self._check = tuple(works), check

    def wait(self, limit: timedelta) -> None:
        for work in self._works:
            work.wait(limit)
        self._check()


def as_bytes(tensor: Tensor) -> Tensor:
    """A tensor's memory, `[n]` uint8."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _memory(data: Tensor) -> memoryview:
    return memoryview(data.numpy())  # type: ignore[arg-type]  # NumPy's arrays are buffers
