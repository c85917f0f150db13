"""Which ranks make up each generation of a run: agreed on in a store that outlives all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore

from relaxcomm.errors import CommunicationError
from relaxcomm.network.liveness import without_frames
from relaxcomm.network.meeting_place import MeetingPlace
from relaxcomm.network.processes import ENDED, condition_of
from relaxcomm.network.store_thread import BoundedStore

_LOOK_SECONDS = 0.01
_MAKING = timedelta(seconds=10)  # of groups, among those who have all just said that they are here


@dataclass(frozen=True)
class Generation:
    """Those who train together between two changes.

    Args:
        number: from 0; none is used twice.
        workers: the ranks that they had in generation 0, in the order of their ranks now.
        lost: those of the generation before who are not among them, each with what became of it.
    """

    number: int
    workers: tuple[int, ...]
    lost: dict[int, str] = field(default_factory=dict)


class Generations:
    """Brings those who are left from one generation to the next.

    Each says that it is ready; when all others are ready or gone, the first to see so proposes who goes on,
    and what the store has kept first holds for all. So ranks that notice a failure at different times end
    in the same generation.

    Args:
        place: where the ranks of generation 0 meet; its store must not be held by one of them.
        patience_seconds: how long a rank is waited for that runs, or of which nothing can be known.
    """

    def __init__(self, place: MeetingPlace, patience_seconds: float) -> None:
        self._place, self._patience_seconds = place, patience_seconds
        self._worker = place.membership.rank
        self.current = Generation(0, tuple(range(place.membership.world_size)))
        """The one that trains now."""
        # Where `Peers` of generation 0 tell of processes.
        self._store = BoundedStore(PrefixStore(place.name, place.store), patience_seconds)

    def follow(self) -> MeetingPlace:
        """Agree on who goes on; where they meet.

        Raises: CommunicationError if the others have gone on without this rank, or the store is gone.
        """
        before = self.current
        try:
            lost = self._agree(before.workers, before.number + 1)
        except RuntimeError as error:
            raise CommunicationError(
                f"rank {self._worker} cannot go on: the store in which those who are left would agree has "
                f"ended with its process ({without_frames(error)}); let a process hold it that does not train"
            ) from error
        if self._worker in lost:
            raise CommunicationError(
                f"rank {self._worker} was given up by the others, who have gone on without it: "
                f"{lost[self._worker]}"
            )
        workers = tuple(one for one in before.workers if one not in lost)
        self.current = Generation(before.number + 1, workers, lost)
        return self._place.of_generation(self.current.number, self.current.workers, _MAKING)

    def leave(self, words: str) -> None:
        """Say that this rank takes part no more, to those who would wait for it."""
        with suppress(RuntimeError):  # the store is gone, and with it whoever would ask
            self._store.set(f"left/{self._worker}", words)
        self._store.close()

    def _agree(self, workers: Sequence[int], number: int) -> dict[int, str]:
        """What became of those who do not go on, the same on all who ask."""
        self._store.set(f"{number}/ready/{self._worker}", "")
        deadline, key = time.monotonic() + self._patience_seconds, f"{number}/workers"
        while not self._store.check([key]):
            lost = self._lost(workers, number, is_late=time.monotonic() > deadline)
            if lost is not None:
                self._store.compare_set(key, "", json.dumps(lost))
            else:
                time.sleep(_LOOK_SECONDS)
        return {int(worker): how for worker, how in json.loads(self._store.get(key)).items()}

    def _lost(self, workers: Sequence[int], number: int, *, is_late: bool) -> dict[int, str] | None:
        """What became of those who do not go on; None as long as some may still come."""
        lost = {}
        for worker in workers:
            if self._store.check([f"{number}/ready/{worker}"]):
                continue
            left, condition = self._read(f"left/{worker}"), condition_of(self._read(f"process/{worker}"))
            if not (left or condition.startswith(ENDED) or is_late):
                return None
            lost[worker] = left or condition or f"did not come within {self._patience_seconds:g} s"
        return lost

    def _read(self, key: str) -> str:
        return str(self._store.get(key).decode()) if self._store.check([key]) else ""
