"""What is told when a run goes on among other ranks."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from relaxcomm.engine.membership.elastic import Elastic
from relaxcomm.errors import CommunicationError, RankLostError
from relaxcomm.network.generations import Generation, Generations
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.transport import Membership

LIMIT = timedelta(seconds=5)
LATE = "a rank was late, so what was under way is given up, but none is lost: 3 ranks go on from step 9"


@pytest.mark.parametrize(
    ("lost", "joined", "in_order", "told"),
    [
        ({3: "has ended"}, (), False, "worker 3 has ended: 3 ranks go on from step 9"),
        ({}, (2,), True, "worker 2 joins: 3 ranks go on from step 9"),
        ({}, (), False, LATE),
        ({}, (), True, None),  # who has asked has ended before it joined
    ],
)
def test_each_change_is_told(lost, joined, in_order, told, capsys):
    rendezvous = Rendezvous(dist.HashStore(), "run", Membership(0, 3), (0, 1, 2), LIMIT, LIMIT)
    generations = Generations(rendezvous, 3, 1.0)
    generations.current = Generation(1, (0, 1, 2), lost, joined)
    Elastic(generations, 1.0, 1).say(9, in_order=in_order)
    assert capsys.readouterr().err == ("" if told is None else f"relaxcomm: {told}\n")


def following(monkeypatch, changes, meets, quorum=1, reaches_fewest=False):
    """What becomes of a worker that sees these generations, of which it meets the others in one."""
    generations, coming = SimpleNamespace(current=None, tell_reached=lambda: None), iter(changes)
    generations.reaches_fewest = lambda: reaches_fewest

    def follow(newest):
        generations.current = next(coming)
        return generations.current.number

    def at(world, number):
        if number != meets:
            raise RankLostError("no route to host")
        return number

    generations.follow = follow
    elastic = Elastic(generations, 1.0, quorum)
    monkeypatch.setattr(elastic, "at", at)
    elastic.next_world(None, -1, Generation(0, (0, 1, 2, 3)))
    return elastic.generation


def test_who_agree_but_do_not_reach_each_other_do_not_try_for_ever(monkeypatch):
    """A firewall between two workers that both reach the store had all agree again and again."""
    kept = [Generation(number, (0, 1, 2), {3: "has ended"} if number == 2 else {}) for number in range(1, 9)]
    assert following(monkeypatch, kept, 4, reaches_fewest=True).number == 4
    with pytest.raises(CommunicationError, match=r"not each other, 3 times in a row: no route to host"):
        following(monkeypatch, kept, 5, reaches_fewest=True)
    assert following(monkeypatch, kept, 7).number == 7
    with pytest.raises(CommunicationError, match=r"not each other, 6 times in a row"):
        following(monkeypatch, kept, 9)


def test_who_was_lost_in_a_generation_that_never_met_is_told_of(monkeypatch):
    """It was said that none is lost."""
    changes = [Generation(1, (0, 1, 2), {3: "has ended"}), Generation(2, (0, 1, 2))]
    assert following(monkeypatch, changes, 2) == Generation(2, (0, 1, 2), {3: "has ended"})
    changes = [
        Generation(1, (0, 1, 2, 4), {3: "has ended"}, (4,)),
        Generation(2, (0, 1), {4: "failed", 2: "late"}),
    ]
    assert following(monkeypatch, changes, 2) == Generation(2, (0, 1), {2: "late", 3: "has ended"})


def test_too_few_are_left_after_several_losses_of_which_all_are_named(monkeypatch):
    losses = [Generation(1, (0, 1, 2), {3: "has ended"}), Generation(2, (0, 1), {2: "is stopped"})]
    with pytest.raises(CommunicationError, match=r"quorum: 3 \(worker 3 has ended; worker 2 is stopped\)"):
        following(monkeypatch, losses, 9, quorum=3)


@pytest.mark.parametrize("lost", [0, 2, 3])
def test_who_joins_asks_again_where_that_is_broken_off(lost, capsys):
    asked, met = [], []

    def meet(rendezvous):
        met.append(rendezvous)
        if len(met) <= lost:
            raise RankLostError("rank 0 has ended")
        return "a session"

    generations = SimpleNamespace(ask=lambda: asked.append(1), wait_for_admission=lambda seconds: len(asked))
    elastic = Elastic(generations, 1.0, 1)
    if lost < 3:
        assert elastic.join(meet) == "a session"
    else:
        with pytest.raises(
            CommunicationError, match="broken off 3 times; start this worker again: rank 0 has ended"
        ):
            elastic.join(meet)
    assert met == [1, 2, 3][: lost + 1]
    assert capsys.readouterr().err.count(
        "joining was broken off, so it asks again: rank 0 has ended\n"
    ) == min(lost, 2)
