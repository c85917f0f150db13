"""Waits for other ranks in slices; where they do not come, it says who is missing, and why."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from relaxcomm.errors import CommunicationError, RankLostError
from relaxcomm.network import flight_recorder
from relaxcomm.network.liveness import Missing, Peers, without_frames
from relaxcomm.network.meetings import Apart
from relaxcomm.network.operations import Label
from relaxcomm.network.processes import ENDED
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.service_messages import RefusedError
from relaxcomm.network.status import State, Status
from relaxcomm.network.trail import Trail

_SLICE_SECONDS = 1.0
_SHORT_SLICE_SECONDS = 0.2
_ELASTIC_SLICE_SECONDS = 0.1
_GRACE_SECONDS = 1.0  # in which those that see a peer end say so
_HINT = "; if Gloo aborted it, for messages of other sizes than its own, set debug: true, which names them"

T = TypeVar("T")


class Waiting:
    """The waits of one rank, and what they fail with.

    Args:
        rendezvous: where the ranks meet.
        trail: what this rank has issued.
        seconds: the longest wait.
        limit: the setting that says so, for errors.
        elastic: whether others go on without ranks that are lost; then whoever waits looks often.
        is_watched: whether ranks on other hosts learn at once when this one's process ends.

    Raises: RuntimeError if the store does not answer.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        trail: Trail,
        *,
        seconds: float,
        limit: str,
        elastic: bool,
        is_watched: bool,
    ) -> None:
        self.seconds, self.limit = seconds, limit
        self.has_failed = False
        """Whether a wait has failed, so that nothing more can come."""
        self.error: CommunicationError | None = None
        """With which it has failed last."""
        self.peers = Peers(rendezvous, is_watched=is_watched)
        self._rendezvous, self._trail = rendezvous, trail
        self._is_elastic = elastic
        self._look_seconds = _ELASTIC_SLICE_SECONDS if elastic else _SLICE_SECONDS
        self._asked = -math.inf  # when, in `look`, what became of the peers

    def status(self, state: State, words: str, operations: int | None = None) -> Status:
        """The status of this rank.

        Args:
            state: what it does.
            words: the same for people.
            operations: issued before; None for all until now.
        """
        count = self._trail.count if operations is None else operations
        return Status(state, words, self._trail.events, count)

    def wait(self, work: Any, mine: Status, at: object, slice_seconds: float = _SLICE_SECONDS) -> None:
        """Wait in slices; between them, say where this rank waits, and look whether the others will come."""
        deadline, noticed, announced = time.monotonic() + self.seconds, Missing(), False
        while True:
            left = deadline - time.monotonic()
            try:
                work.wait(timedelta(seconds=max(0.001, min(slice_seconds, left))))
                return
            except RuntimeError as error:
                if _has_failed(work):
                    raise self.broke(at, error, mine) from error
            if not announced:
                self.peers.announce(mine)
            missing, announced = self.peers.missing(mine), True
            if missing and missing == noticed:  # seen twice: what others sent before they ended has come
                raise self.failure(at, missing)
            noticed, slice_seconds = missing, _SHORT_SLICE_SECONDS if missing else _SLICE_SECONDS
            if left <= 0:
                raise self.late(at, mine)

    def wait_for(self, work: Any, label: Label, index: int | None) -> None:
        """Wait for the operation that was issued as number `index`, or for a service where that is None."""
        deadline = time.monotonic() + min(_SLICE_SECONDS, self.seconds)
        while (left := deadline - time.monotonic()) > 0:
            try:
                work.wait(timedelta(seconds=max(0.001, min(self._look_seconds, left))))  # 0 is for ever
                return  # without a status, which is made for what is late
            except RuntimeError:
                if work.is_completed() or (self._look_seconds < left and self.peers.is_over()):
                    break
        self.wait(work, self.waits(label, index), label)

    def wait_at_event(self, work: Any, state: State, event: str) -> None:
        """Wait for all ranks at an event."""
        self.wait(work, self.status(state, f"is at {event}"), event, _SHORT_SLICE_SECONDS)

    def look(self, work: Any, label: Label, index: int | None, since: float) -> bool:
        """Whether a work that was issued at `since` has ended, well or not."""
        if work.is_completed():
            return True
        if time.monotonic() - since > self.seconds:
            raise self.late(label, self.waits(label, index))
        self.look_for_missing(label, index)
        return False

    def look_for_missing(self, label: Label, index: int | None) -> None:
        """Look what became of the others, now and then: whoever polls does so for each bucket."""
        now = time.monotonic()
        if now - self._asked >= _SLICE_SECONDS:
            self._asked = now
            if missing := self.peers.missing(self.waits(label, index), _SHORT_SLICE_SECONDS):
                raise self.failure(label, missing)

    def missing(self, label: Label, index: int) -> Missing:
        """Say that this rank waits for an operation, and look who will never come to it."""
        mine = self.waits(label, index)
        self.peers.announce(mine)
        return self.peers.missing(mine)

    def at_event(self, event: str, meet: Callable[[], T]) -> T:
        """What `meet` brings; its errors are this rank's."""
        try:
            return meet()
        except Apart as error:
            raise self.failure(event, Missing(str(error))) from None
        except CommunicationError:
            raise
        except TimeoutError as error:
            raise self.failure(event, Missing(str(error), lost=True)) from error
        except RuntimeError as error:
            raise self.broke(event, error) from error

    def announce(self, words: str) -> None:
        """Tell others what became of this rank; "failed: …" when it will never come."""
        state: State = "failed" if words.startswith("failed") else "closed"
        self.has_failed = self.has_failed or state == "failed"
        self.peers.announce(self.status(state, words))

    def end_of_asking(self, event: str) -> Callable[[], None]:
        """Say that this rank asks nothing more; what is returned raises if others will never say so."""
        mine = self.status("serves", "has finished and serves")
        self.peers.announce(mine)

        def check() -> None:
            if missing := self.peers.missing(mine):
                raise self.failure(event, missing)

        return check

    def broke(self, at: object, error: RuntimeError, mine: Status | None = None) -> CommunicationError:
        """What torch's error means for this rank, which waited there."""
        if isinstance(error, RefusedError):
            return self.failure(at, Missing(f"an answer was refused and not used: {error}"))
        cause = self.peers.cause(mine or self.status("asks", "", 0), _GRACE_SECONDS)
        return self.failure(at, replace(cause, words=f"{cause.words} ({without_frames(error)})"))

    def failure(self, at: object, cause: Missing) -> CommunicationError:
        """The error of this rank, which is told to the others."""
        kind = RankLostError if cause.lost else CommunicationError
        hint = _HINT if ENDED in cause.words else ""
        found = kind(f"rank {self._rendezvous.membership.rank} at {at}: {without_frames(cause.words)}{hint}")
        self.error = found
        self.announce(f"failed: {kind.__name__}: {found}")
        return found

    def waits(self, label: Label, index: int | None) -> Status:
        """The status of this rank where it waits for an operation, or for a service."""
        return self.status("asks" if index is None else "waits", f"waits at {label}", index or 0)

    def late(self, at: object, mine: Status) -> CommunicationError:
        """The error of this rank when an operation has taken too long."""
        said = f"not complete after {self.seconds:g} s ({self.limit}): {self.peers.heard(mine)}"
        if recorded := flight_recorder.dump(self._rendezvous.ranks[self._rendezvous.membership.rank]):
            said += f"; torch's Flight Recorder is in {recorded}"
        return self.failure(at, Missing(said, lost=True))


def _has_failed(work: Any) -> bool:
    """Whether a wait raised because the operation failed: a slice that ran out is not completed."""
    if not work.is_completed():
        return False
    with suppress(RuntimeError):
        work.wait(timedelta(0))
        return False
    return True
