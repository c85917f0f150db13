"""Events at which all ranks meet: they compare where they are before anything else is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from relaxcomm.network.process_groups import Groups
from relaxcomm.network.status import AS_MANY_STEPS, State
from relaxcomm.network.trail import Entry, Trail

_HEADER_BYTES = 512
_TRAIL_BYTES = 1 << 15  # more than a trail takes


class Apart(Exception):
    """Ranks are not at the same place; the message, the same on all of them, says who is where."""


@dataclass(frozen=True)
class Header:
    """Where a rank is when it comes to an event.

    Args:
        event: such as "averaged()".
        step: of the training loop; None where ranks have clocks of their own.
        operations: issued so far.
        digest: of them.
        payload_bytes: that follow.
    """

    event: str
    step: int | None
    operations: int
    digest: int
    payload_bytes: int = 0

    @property
    def words(self) -> str:
        """For people."""
        return self.event if self.step is None else f"{self.event} in step {self.step}"


def check_headers(headers: Sequence[Header]) -> None:
    """Refuse events that ranks did not come to together.

    Raises: Apart, the same on all ranks.
    """
    events = sorted({header.event for header in headers})
    if len(events) > 1:
        raise _apart(headers, f"every rank must come to {' and '.join(events)}, in the same order")
    if len({header.step for header in headers}) > 1:
        raise _apart(headers, AS_MANY_STEPS)


def parting(headers: Sequence[Header], trails: Sequence[Sequence[Entry]]) -> Apart:
    """What to say of ranks that have issued different operations before an event."""
    known = [dict(trail) for trail in trails]
    common = sorted(set().union(*known))
    oldest = max((min(one) for one in known if one), default=0)
    for index in common:
        issued = [one.get(index, "nothing") for one in known]
        if index >= oldest and len(set(issued)) > 1:
            places = _by_rank([f"issued {words}" for words in issued])
            return Apart(
                f"ranks have issued different operations before {headers[0].words}: as operation {index} "
                f"{places}; every rank must do the same in each step"
            )
    counts = _by_rank([f"issued {header.operations}" for header in headers])
    return Apart(
        f"ranks have issued different operations before {headers[0].words}, long ago: {counts}; every rank "
        "must do the same in each step"
    )


class Meetings:
    """Gathers headers on a group that carries nothing else, so that they meet no other message.

    Args:
        groups: whose control group it is.
        trail: of this rank's operations.
        wait: for a work, in a state, at a place.
    """

    def __init__(self, groups: Groups, trail: Trail, wait: Callable[[Any, State, str], None]) -> None:
        self._groups, self._trail, self._wait = groups, trail, wait
        self._sent: tuple[Tensor, Any, list[Entry]] | None = None  # by `compare`

    def meet(self, event: str, step: int | None, payload: bytes = b"") -> list[bytes]:
        """Go on when all ranks are here; each one's payload.

        Raises: Apart if one is elsewhere.
        """
        mine = Header(event, step, self._trail.count, self._trail.digest, len(payload))
        self._settle("meets", mine)
        rows, work = self._gather(_packed(mine), _HEADER_BYTES)
        self._wait(work, "meets", mine.words)
        headers = _unpacked(rows)
        check_headers(headers)
        self._check_trails(headers, self._trail.recent(), "meets", mine)
        longest = max(header.payload_bytes for header in headers)
        if longest:
            rows, work = self._gather(payload, longest)
            self._wait(work, "meets", mine.words)
        self._trail.events += 1
        return [bytes(row.numpy())[: header.payload_bytes] for row, header in zip(rows, headers, strict=True)]

    def compare(self) -> None:
        """Send a digest of what was issued to all, who look at it here, or at an event, the next time.

        Raises: Apart if the last ones differed.
        """
        mine = Header(f"operation {self._trail.count}", None, self._trail.count, self._trail.digest)
        self._settle("asks", mine)
        self._sent = *self._gather(_packed(mine), _HEADER_BYTES), self._trail.recent()

    def let_go(self) -> None:
        """Look no more at what `compare` has sent."""
        self._sent = None

    def _settle(self, state: State, at: Header) -> None:
        """Look at what `compare` has sent."""
        if self._sent is not None:
            (rows, work, trail), self._sent = self._sent, None
            self._wait(work, state, at.words)
            self._check_trails(_unpacked(rows), trail, state, at)

    def _check_trails(
        self, headers: Sequence[Header], recent: Sequence[Entry], state: State, at: Header
    ) -> None:
        """Raise Apart where digests differ: then all ranks, who see the same, send what they have issued."""
        if len({(header.operations, header.digest) for header in headers}) > 1:
            rows, work = self._gather(json.dumps(recent).encode(), _TRAIL_BYTES)
            self._wait(work, state, at.words)
            raise parting(headers, [json.loads(bytes(row.numpy())) for row in rows])

    def _gather(self, content: bytes, size: int) -> tuple[Tensor, Any]:
        """Begin to gather every rank's bytes and blanks behind them: `[world_size, size]`, and a work."""
        return self._groups.gather_bytes(torch.frombuffer(bytearray(content.ljust(size)), dtype=torch.uint8))


def _packed(header: Header) -> bytes:
    """No longer than a row, else Gloo aborts whoever has a shorter one: the event, which is last, is cut."""
    event, *numbers = astuple(header)
    return f"{json.dumps(numbers)}{event}".encode(errors="replace")[:_HEADER_BYTES]


def _unpacked(rows: Tensor) -> list[Header]:
    texts = [bytes(row.numpy()).decode(errors="ignore").rstrip() for row in rows]
    parts = [text.partition("]") for text in texts]
    return [Header(event, *json.loads(numbers + end)) for numbers, end, event in parts]


def _apart(headers: Sequence[Header], advice: str) -> Apart:
    places = _by_rank([f"at {header.words}" for header in headers], "is", "are")
    return Apart(f"ranks are not at the same place: {places}; {advice}")


def _by_rank(words: Sequence[str], one: str = "", several: str = "") -> str:
    """What ranks do, those that do the same together."""
    ranks: dict[str, list[int]] = {}
    for rank, does in enumerate(words):
        ranks.setdefault(does, []).append(rank)
    return "; ".join(
        f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))} "
        + f"{several if len(who) > 1 else one} {does}".strip()
        for does, who in ranks.items()
    )
