"""What becomes of the ranks, told through the store of the default process group."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.distributed.distributed_c10d import PrefixStore

from relaxcomm.errors import CommunicationError, RankLostError
from relaxcomm.network.processes import ENDED, SILENTLY, condition_of, this_process, watch
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.signed_store import read_all
from relaxcomm.network.status import AS_MANY_STEPS, Status
from relaxcomm.network.store_thread import StoreThread

_FRAMES = re.compile(
    r"(^|\n)(Exception raised from|frame #)[^\n]*|\[/[^\]]*\.cc:\d+\] | This is typically[^\n]*"
)
_OVER = "over"
_LOST = f"failed: {RankLostError.__name__}"
_FOLLOWED = (f"failed: {CommunicationError.__name__}", _LOST)  # from what became of another rank
_SHOWN = 16  # ranks in an error
_PATIENCE_SECONDS, _LOST_SECONDS = 1.0, 0.1  # with a store that answers, and that did not the last time


def without_frames(error: object) -> str:
    """What an error says, without what torch and Gloo put around it of their source."""
    return _FRAMES.sub("", str(error)).strip()


T = TypeVar("T")


@dataclass(frozen=True)
class Missing:
    """Who will never come, and what keeps them; false where that cannot be said.

    Args:
        words: for people.
        lost: whether they have ended, so that others could go on without them.
    """

    words: str = ""
    lost: bool = False

    def __bool__(self) -> bool:
        return bool(self.words)


class Peers:
    """Statuses that ranks publish for those that wait for them; nobody is held up by a store that is silent.

    Args:
        rendezvous: where the ranks meet.
        is_watched: whether this process and those on other hosts learn at once when one of them ends.
    """

    def __init__(self, rendezvous: Rendezvous, *, is_watched: bool = False) -> None:
        store, membership = PrefixStore(rendezvous.name, rendezvous.store), rendezvous.membership
        self._store = StoreThread(store)
        self._rank = membership.rank
        self._others = [rank for rank in range(membership.world_size) if rank != membership.rank]
        self._patience_seconds = _PATIENCE_SECONDS
        self._processes: dict[int, str] = {}
        self._heard: dict[int, Status] = {}  # when the store has answered last
        self.process = this_process(is_watched=is_watched)
        """Where this rank's process is found."""
        store.set(f"process/{self._rank}", self.process)
        store.set(f"status/{self._rank}", "")  # so that all are there, and can be read at once

    def meet(self, processes: Sequence[object]) -> None:
        """Learn where the processes of all ranks are, in their order."""
        self._processes = {rank: str(processes[rank]) for rank in self._others}
        for process in self._processes.values():
            watch(process)

    def announce(self, status: Status) -> None:
        """Publish a status, if the store can be reached: whoever would read it asks the same store."""
        if not self._others:
            return
        try:
            self._ask(lambda store: store.set(f"status/{self._rank}", status.encode()))
            if status.state == "failed":
                self._ask(lambda store: store.set(_OVER, ""))
        except (RuntimeError, TimeoutError):
            return

    def is_over(self) -> bool:
        """Whether any rank has failed, as far as is known: one look, however many ranks there are."""
        try:
            return bool(self._ask(lambda store: store.check([_OVER])))
        except (RuntimeError, TimeoutError):
            return False

    def missing(self, mine: Status, seconds: float = _PATIENCE_SECONDS) -> Missing:
        """Who will never come to where this rank is; nothing where that cannot be said."""
        try:
            self._heard = self._ask(self._read, seconds)
        except TimeoutError:
            pass  # its host is stopped, and may go on
        except RuntimeError as error:  # nor can be read who has ended without a message
            return _cause(mine, self._heard, {}) or self._unread(error)
        return _cause(mine, self._heard, self._processes)

    def _unread(self, error: RuntimeError) -> Missing:
        """What is known where the store has ended: not who of those that have ended was the first, or why."""
        ended = {rank: how.replace(SILENTLY, "") for rank, how in _ended(self._processes).items()}
        lost = (
            f"the store does not answer, so the process that holds it has ended ({without_frames(error)}); "
            "what others said last cannot be read"
        )
        return Missing("; ".join([_listed(ended), lost] if ended else [lost]), lost=bool(ended))

    def heard(self, mine: Status) -> str:
        """What is known of all the others, to one that is there."""
        words, trouble = dict.fromkeys(self._others, "says nothing"), ""
        try:
            words |= {rank: one.as_heard(mine) for rank, one in self._ask(self._read).items()}
        except (RuntimeError, TimeoutError) as error:
            trouble = f"; the store does not answer ({without_frames(error)})"
        words |= {rank: how for rank, where in self._processes.items() if (how := condition_of(where))}
        return _listed(words) + trouble

    def cause(self, mine: Status, seconds: float) -> Missing:
        """Why a connection broke: who has failed or ended, when that is known, or what all others say."""
        deadline = time.monotonic() + seconds
        while True:
            if known := self.missing(Status("asks", "")):
                return known
            if time.monotonic() >= deadline:
                return Missing(self.heard(mine), lost=True)
            time.sleep(0.05)

    def close(self) -> None:
        """End the thread that asks."""
        self._store.close()

    def _ask(self, question: Callable[[Any], T], seconds: float = _PATIENCE_SECONDS) -> T:
        try:
            answer = self._store.ask(question, min(seconds, self._patience_seconds))
        except TimeoutError:
            self._patience_seconds = _LOST_SECONDS
            raise
        self._patience_seconds = _PATIENCE_SECONDS
        return answer

    def _read(self, store: Any) -> dict[int, Status]:
        """What others have said."""
        keys = [f"status/{rank}" for rank in self._others]
        if store.check(keys):
            texts = [value.decode() for value in read_all(store, keys)]
        else:  # they are still on their way to this meeting
            texts = [store.get(key).decode() if store.check([key]) else "" for key in keys]
        return {rank: Status.decode(text) for rank, text in zip(self._others, texts, strict=True) if text}


def _cause(mine: Status, statuses: Mapping[int, Status], processes: Mapping[int, str]) -> Missing:
    """The first thing that keeps others from coming, and not what followed from it."""
    failed = {rank: s.words for rank, s in statuses.items() if s.state == "failed"}
    gone = {rank for rank, status in statuses.items() if status.state in ("closed", "failed")}
    ended = {rank: how for rank, how in _ended(processes).items() if rank not in gone}
    closed = {rank: s.words for rank, s in statuses.items() if s.closed_before(mine)}
    elsewhere = {
        rank: f"{s.words}: {_advice(s, mine)}" for rank, s in statuses.items() if s.never_comes_to(mine)
    }
    followed = {rank: words for rank, words in failed.items() if words.startswith(_FOLLOWED)}
    first = {rank: words for rank, words in failed.items() if rank not in followed} | ended
    found = first or _origin(failed) or closed or elsewhere
    lost = bool(first) or any(how.startswith(_LOST) for how in followed.values())
    return Missing(_listed(found), lost=lost)


def _ended(processes: Mapping[int, str]) -> dict[int, str]:
    """Of processes that have ended what their system says."""
    conditions = {rank: condition_of(where) for rank, where in processes.items()}
    return {rank: how for rank, how in conditions.items() if how.startswith(ENDED)}


def _advice(theirs: Status, mine: Status) -> str:
    """What to do where two do not come to each other."""
    one_ends = any(one.words.startswith("is at close()") for one in (theirs, mine))
    return AS_MANY_STEPS if one_ends else "every rank must do the same"


def _origin(failed: Mapping[int, str]) -> dict[int, str]:
    """Of failures that tell of each other, the one that the others tell of: no other is as short."""
    return dict(sorted(failed.items(), key=lambda one: len(one[1]))[:1])


def _listed(words: Mapping[int, str]) -> str:
    """What ranks do; of many the first few."""
    shown = [f"rank {rank} {does}" for rank, does in sorted(words.items())]
    more = len(shown) - _SHOWN
    return "; ".join([*shown[:_SHOWN], f"and {more} others"] if more > 1 else shown)
