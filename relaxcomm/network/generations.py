"""Which workers make up each generation of a run: agreed on in a store that outlives all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

from relaxcomm.errors import CommunicationError, ConfigError
from relaxcomm.network.liveness import without_frames
from relaxcomm.network.processes import ENDED, condition_of, reached, this_process
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.signed_store import absent
from relaxcomm.network.store_thread import BoundedStore
from relaxcomm.network.threaded_call import ThreadedCall

_LOOK_SECONDS = 0.01
_MAKING = timedelta(seconds=10)  # of groups, among those who have all just said that they are here
_ANSWER = timedelta(seconds=0.1)
_GOODBYE_SECONDS = 5.0
_NEWCOMERS = "newcomers"


class GivenUpError(CommunicationError):
    """The others have gone on without this worker."""


@dataclass(frozen=True)
class Generation:
    """The workers that train together between two changes of membership.

    Args:
        number: from 0; none is used twice.
        workers: in the order of their ranks now; those of generation 0 have their ranks as numbers, and each
            that comes later has a number of its own.
        lost: those of the generation before who are not among them, each with what became of it.
        joined: those who were not in the generation before.
        newest: the largest number that any worker has had; none is used twice.
    """

    number: int
    workers: tuple[int, ...]
    lost: Mapping[int, str] = field(default_factory=dict)
    joined: tuple[int, ...] = ()
    newest: int = -1


class Generations:
    """Brings a worker from one generation to the next.

    Each says that it is ready; when all others are ready or gone, the first to see so proposes who goes on,
    and what the store has kept first holds for all. So workers that notice a failure at different times
    end in the same generation. A worker that asks to be admitted is part of a proposal when those who propose
    were told to admit it.

    Args:
        rendezvous: where the ranks of generation 0 meet, or met; its store must not be held by a worker.
        size: the number of ranks in generation 0.
        patience_seconds: how long a worker is waited for that runs, or of which nothing can be known.
    """

    def __init__(self, rendezvous: Rendezvous, size: int, patience_seconds: float) -> None:
        self._rendezvous, self._size, self._patience_seconds = rendezvous, size, patience_seconds
        self._worker = rendezvous.membership.rank
        self.current = Generation(0, tuple(range(size)), newest=size - 1)
        """The one that trains now."""
        self._look: ThreadedCall | None = None  # for newcomers, whose last one is found
        self._found = -1
        # Where `Peers` of generation 0 tell of processes.
        self._store = BoundedStore(PrefixStore(rendezvous.name, rendezvous.store), patience_seconds)

    def follow(self, newest: int = -1) -> Rendezvous:
        """Agree on who goes on; where they meet.

        Args:
            newest: newcomers up to this one are admitted.

        Raises: GivenUpError if the others have gone on without this worker; CommunicationError if the
            store is gone.
        """
        with self._store_needed("go on"):
            decided = self._agree(newest)
        return self._go_to(decided)

    def leave(self, words: str) -> None:
        """Say that this worker takes part no more, to those who would wait for it."""
        self._store.seconds = min(_GOODBYE_SECONDS, self._store.seconds)
        with suppress(RuntimeError):  # the store is gone, and with it whoever would ask
            self._store.set(f"left/{self._worker}", words)
        self._store.close()

    def tell_reached(self) -> None:
        """Say how many of the workers this one reaches, for `reaches_fewest` in the next generation."""
        with self._store_needed("go on"):
            found = reached([self._read(f"process/{one}") for one in self.current.workers])
            self._store.set(f"{self.current.number}/reached/{self._worker}", str(found))

    def reaches_fewest(self) -> bool:
        """Whether it does not reach all, and no other has told of fewer, or of as few and comes after it."""
        workers, before = self.current.workers, self.current.number - 1
        with self._store_needed("go on"):
            told = [(int(self._read(f"{before}/reached/{one}") or len(workers)), -one) for one in workers]
        return min(told)[1] == -self._worker and min(told)[0] < len(workers)

    def newest(self) -> int:
        """The last newcomer that has asked to be admitted, and has not ended; -1 where there is none."""
        look = self._look = self._look or ThreadedCall(self._find_newest)
        with suppress(RuntimeError):  # of a store that has ended: nobody can ask there
            look.wait(_ANSWER)
        if not look.is_completed():  # training does not wait for a store that is away: it is read next time
            return -1
        self._look = None
        return self._found if self._found > self.current.newest else -1

    def _find_newest(self) -> None:
        self._found = -1
        asked = range(self.current.newest + 1, self._size + self._store.add(_NEWCOMERS, 0))
        self._found = next((worker for worker in reversed(asked) if not self._gone(worker)), -1)

    def refuse(self, newest: int, why: str, *, says: bool) -> None:
        """Do not admit newcomers up to one; every worker calls it, and one says so in the store."""
        if says:
            for worker in range(self.current.newest + 1, newest + 1):
                self._store.set(f"refused/{worker}", why)
        self.current = replace(self.current, newest=newest)

    def ask(self) -> None:
        """Ask to be admitted, as a worker that was not there before; what this one was is gone."""
        with self._store_needed("ask to be admitted"):
            if self._worker >= 0:
                self._store.set(f"left/{self._worker}", "asks to join again")
            self._worker = self._size + self._store.add(_NEWCOMERS, 1) - 1
            self._store.set(f"process/{self._worker}", this_process())

    def wait_for_admission(self, seconds: float) -> Rendezvous:
        """Wait until the others admit this worker; where they meet.

        Raises: CommunicationError if they do not within so many seconds, or have ended.
        """
        deadline = time.monotonic() + seconds
        with self._store_needed("be admitted"):
            while True:
                key = _decision(self.current.number + 1)
                if self._store.check([key]):
                    self.current = _parsed(self.current.number + 1, self._store.get(key))
                    if self._worker in self.current.workers:
                        return self._go_to(self.current)
                    continue
                if why := self._read(f"refused/{self._worker}"):
                    raise ConfigError(f"the run does not admit this worker: {why}")
                if not (left := sum(not self._gone(worker) for worker in self.current.workers)):
                    self.leave("was not admitted")
                    raise CommunicationError("the run has ended before this worker was admitted")
                if time.monotonic() > deadline:
                    self.leave("was not admitted")
                    raise CommunicationError(
                        f"this worker was not admitted within {seconds:g} s (timeout_seconds) by the {left} "
                        "that train; workers are admitted when they synchronise"
                    )
                time.sleep(_LOOK_SECONDS)

    def _go_to(self, decided: Generation) -> Rendezvous:
        if self._worker not in decided.workers:
            raise GivenUpError(
                f"worker {self._worker} was given up by the others, who have gone on without it: "
                f"{decided.lost.get(self._worker, 'it has left')}"
            )
        self.current = decided
        return self._rendezvous.of_generation(decided.number, self._worker, decided.workers, _MAKING)

    def _agree(self, newest: int) -> Generation:
        """Who goes on, the same on all who ask."""
        before, number = self.current, self.current.number + 1
        self._store.set(f"{number}/ready/{self._worker}", "")
        deadline, key = time.monotonic() + self._patience_seconds, _decision(number)
        while not self._store.check([key]):
            lost = self._lost(before.workers, number, is_late=time.monotonic() > deadline)
            if lost is None:
                time.sleep(_LOOK_SECONDS)
                continue
            joined = [one for one in range(before.newest + 1, newest + 1) if not self._gone(one)]
            proposed = {
                "workers": [*(one for one in before.workers if one not in lost), *joined],
                "lost": lost,
                "joined": joined,
                "newest": max(before.newest, newest),
            }
            self._store.compare_set(key, "", json.dumps(proposed))
        return _parsed(number, self._store.get(key))

    def _lost(self, workers: tuple[int, ...], number: int, *, is_late: bool) -> dict[int, str] | None:
        """What became of those who do not go on; None as long as some may still come."""
        lost = {}
        for worker in absent(self._store, workers, f"{number}/ready/"):
            how = self._gone(worker)
            if not (how or is_late):
                return None
            late = f"did not come within {self._patience_seconds:g} s"
            lost[worker] = how or self._condition(worker) or late
        return lost

    def _gone(self, worker: int) -> str:
        """What became of a worker that has left, or whose process has ended; nothing of others."""
        condition = self._condition(worker)
        return self._read(f"left/{worker}") or (condition if condition.startswith(ENDED) else "")

    def _condition(self, worker: int) -> str:
        return condition_of(self._read(f"process/{worker}"))

    def _read(self, key: str) -> str:
        return str(self._store.get(key).decode()) if self._store.check([key]) else ""

    @contextmanager
    def _store_needed(self, what: str) -> Iterator[None]:
        try:
            yield
        except CommunicationError:
            raise
        except RuntimeError as error:
            raise CommunicationError(
                f"worker {self._worker} cannot {what}: the store in which the workers would agree has ended, "
                f"or cannot be reached ({without_frames(error)}): the run is over or the network is cut; if "
                "it goes on, let a process hold the store that does not train, where all reach it"
            ) from error


def _decision(number: int) -> str:
    return f"{number}/workers"


def _parsed(number: int, text: Any) -> Generation:
    decided = json.loads(text)
    lost = {int(worker): how for worker, how in decided["lost"].items()}
    return Generation(number, tuple(decided["workers"]), lost, tuple(decided["joined"]), decided["newest"])
