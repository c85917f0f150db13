"""Workers that die and are replaced: how many of the samples count in the end."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from relaxcomm.errors import CompositionError, ConfigError, TopologyError
from relaxcomm.planner.replay import Replay
from relaxcomm.tensors.items import Item

_DEATHS = 2000  # that are drawn: the share is within a hundredth or so
_STATE = 2  # times the parameters that a newcomer gets: these, and an optimizer's momentum


@dataclass(frozen=True)
class Useful:
    """What counts of a run in which workers die.

    Args:
        share: of the samples of a run without failures in as long a time, those that count.
        died_out_seconds: from one moment to the next at which nobody is left, and no checkpoint.
    """

    share: float
    died_out_seconds: float = math.inf


@dataclass(frozen=True)
class Failures:
    """Workers that die, and what becomes of their run.

    Args:
        life_seconds: of a worker, on average; lives are exponentially distributed.
        away_seconds: until another worker takes the place of one that has died.
        elastic: whether the others go on meanwhile; else all begin again, from the last checkpoint.
        saved_seconds: from one checkpoint to the next, or None.
        saved_steps: the same in steps, or None.
        notice_seconds: until the others go on.
        quorum: the least number of workers that go on; with fewer all begin again, from the last checkpoint.

    Raises: ConfigError for a number outside its range, and for a run that would begin anew each time.
    """

    life_seconds: float
    away_seconds: float
    elastic: bool
    saved_seconds: float | None = None
    saved_steps: int | None = None
    notice_seconds: float = 0.25
    quorum: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.life_seconds < math.inf and 0 <= self.away_seconds < math.inf):
            raise ConfigError(
                "failures: a worker lives for more than 0 s and is replaced after 0 s or more; got "
                f"{self.life_seconds:g},{self.away_seconds:g}"
            )
        if not self.elastic and self.saved_seconds is None and self.saved_steps is None:
            raise ConfigError(
                "failures: without checkpoints a run begins anew whenever a worker dies; write checkpoint: "
                "{path: saved, every_seconds: 600}, or membership: {elastic: true}"
            )

    def useful(self, replay: Replay, step_seconds: float, items: Sequence[Item]) -> Useful:
        """What counts of a run.

        Where all begin again, `S / ((exp(S / M) - 1) (M + A))` on average: S from one checkpoint to the next,
        M between two deaths among all workers, A until all are there again.

        Args:
            replay: of the algorithm on the workers.
            step_seconds: what it has brought.
            items: the trainable parameters.
        """
        if self.elastic:
            return self._elastic(replay, step_seconds, items)
        saved, between = self._between_saves(step_seconds), self.life_seconds / replay.scenario.workers
        if saved / between > math.log(1e300):
            return Useful(0.0)
        return Useful(saved / (math.expm1(saved / between) * (between + self.away_seconds)))

    def _elastic(self, replay: Replay, step_seconds: float, items: Sequence[Item]) -> Useful:
        """Events in turn: a death, a newcomer; who waits for the others waits at both.

        Where each goes on alone, nobody is admitted.
        """
        admits = replay.plan.algorithm.is_collective
        size, waits = replay.scenario.workers, replay.plan.algorithm.keeps_step
        seconds_of = _seconds_of_sizes(replay, step_seconds, items)
        # Steps of the one that dies, which are in nobody's model.
        unsynchronised = replay.plan.timetable.period / 2
        joins = _state_seconds(replay, items) if waits else 0.0
        admitted = unsynchronised * seconds_of(size) if waits else 0.0  # at the next synchronisation
        random = np.random.default_rng(replay.scenario.seed)
        now, done, deaths, died_out = 0.0, 0.0, 0, 0
        away: list[float] = []
        while deaths < _DEATHS:
            alive = size - len(away)
            life = random.exponential(self.life_seconds / alive) if alive else math.inf
            if away and away[0] <= now + life:
                begun, now = now, max(now, heapq.heappop(away))
                done += alive * (now - begun) / seconds_of(alive) if alive else 0.0
                now += joins if alive else 0.0
                continue
            now, deaths = now + life, deaths + 1
            done += alive * life / seconds_of(alive)
            if alive > self.quorum:
                under_way = (alive - 1) / 2 if waits else 0.0
                done -= unsynchronised + under_way
                now += self.notice_seconds if waits else 0.0
            else:
                died_out += 1
                unsaved = self._between_saves(seconds_of(alive)) / 2  # on average
                done -= alive * unsaved / seconds_of(alive)
                if alive > 1 or not admits:  # all are started anew
                    away.clear()
                    now += self.away_seconds
                    continue
            heapq.heappush(away, now + self.away_seconds + admitted if admits else math.inf)
        is_saved = self._between_saves(step_seconds) > 0
        share = max(0.0, done) * seconds_of(size) / (size * now)
        return Useful(share, math.inf if is_saved or not died_out else now / died_out)

    def _between_saves(self, step_seconds: float) -> float:
        """Seconds from one checkpoint to the next; 0 without any."""
        if self.saved_seconds is not None:
            return self.saved_seconds
        return (self.saved_steps or 0) * step_seconds


def _seconds_of_sizes(replay: Replay, step_seconds: float, items: Sequence[Item]) -> Callable[[int], float]:
    """The time of a step of fewer workers: replayed for some numbers, and between these in proportion.

    Where links or the graph are those of just so many workers, a step takes what it takes these.
    """
    size, algorithm = replay.scenario.workers, replay.plan.algorithm
    sizes = sorted({1, max(1, size // 2), max(1, size - 1), size})

    @cache
    def seconds(workers: int) -> float:
        if workers == size or not replay.scenario.links.uniform:
            return step_seconds
        try:
            return Replay(algorithm, items, replace(replay.scenario, workers=workers)).run().step_seconds
        except (CompositionError, TopologyError):
            return step_seconds

    return lambda workers: float(np.interp(workers, sizes, [seconds(one) for one in sizes]))


def _state_seconds(replay: Replay, items: Sequence[Item]) -> float:
    """In which a newcomer gets its state from another worker."""
    nbytes = _STATE * sum(item.parameter.numel() * item.tensor.element_size() for item in items)
    link = replay.scenario.links.slowest
    return link.latency_seconds + nbytes / link.bytes_per_second
