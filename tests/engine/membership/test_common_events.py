"""What all ranks do together, where ranks are lost in the middle of it, or at its very end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from relaxcomm.engine.membership.common_events import CommonEvents
from relaxcomm.errors import CommunicationError, RankLostError, RejoinedError


class Run:
    """One rank of a run.

    Args:
        lost_at: meetings at which others are lost, counted from 0.
        others_end: whether the others had come to the end of that meeting.
        joins: whether this rank is a new one to them.
    """

    is_elastic = True

    def __init__(self, *lost_at: int, others_end: bool = False, joins: bool = False) -> None:
        self._lost_at, self._others_end, self._joins = lost_at, others_end, joins
        self._met = 0
        self.world = SimpleNamespace(meet=self._meet, statistics=SimpleNamespace(steps=7))
        self.events = CommonEvents(self)
        self.done: list[int] = []

    def _meet(self, event: str) -> None:
        self._met += 1
        if self._met - 1 in self._lost_at:
            raise RankLostError("rank 1 has ended")

    def joins_again(self, error: RankLostError) -> bool:
        self.events.ended += self._others_end
        return self._joins

    def work(self) -> int:
        self.done.append(len(self.done))
        return self.done[-1]


def test_it_is_done_once_more_where_nobody_has_ended_it():
    run = Run(0, 1)
    assert (run.events.together(run.work), run.done, run.events.ended) == (2, [0, 1, 2], 1)


def test_it_is_over_where_others_have_ended_it():
    run = Run(1, others_end=True)
    assert (run.events.together(run.work), run.done, run.events.ended) == (0, [0], 1)
    assert (run.events.together(run.work), run.done, run.events.ended) == (1, [0, 1], 2), (
        "others have it, too"
    )


def test_a_part_of_it_begins_anew_with_it():
    run = Run(1)
    parts: list[int] = []

    def whole() -> None:
        run.events.together(run.work)
        parts.append(run.events.ended)
        run.world.meet("a part")

    run.events.together(whole)
    assert (run.done, parts) == ([0, 1], [0, 0])


def test_a_rank_that_joins_again_does_something_else():
    run = Run(0, joins=True)
    with pytest.raises(RejoinedError, match=r"joined them again after step 7; catch RejoinedError"):
        run.events.together(run.work)
    run.events.together(run.work)
    assert run.events.ended == 1


@pytest.mark.parametrize("lost_at", [(), (0,)])
def test_what_fails_on_one_rank_alone_is_raised_when_all_have_met(lost_at):
    run = Run(*lost_at)

    def work() -> None:
        run.work()
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run.events.together(work)
    assert (len(run.done), run.events.ended) == (1 + len(lost_at), 1)


def test_what_fails_on_one_rank_is_raised_where_the_others_are_elsewhere():
    run = Run()

    def elsewhere(event: str) -> None:
        raise CommunicationError("ranks are not at the same place")

    def work() -> None:
        run.world.meet = elsewhere
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left") as raised:
        run.events.together(work)
    assert "not at the same place" in str(raised.value.__cause__)


@pytest.mark.parametrize("joins", [False, True])
def test_what_failed_before_others_were_lost_is_told(joins):
    run = Run(0, joins=joins)

    def cannot_go_on(error: RankLostError) -> bool:
        raise error

    def work() -> None:
        raise OSError("no space left")

    if not joins:
        run.joins_again = cannot_go_on
    with pytest.raises(RejoinedError if joins else RankLostError) as raised:
        run.events.together(work)
    assert "no space left" in str(raised.value.__cause__)


def test_nobody_is_met_after_an_exchange_has_failed():
    run = Run()

    def work() -> None:
        raise CommunicationError("ranks are not at the same place")

    with pytest.raises(CommunicationError, match="not at the same place"):
        run.events.together(work)
    assert run.events.ended == 0
