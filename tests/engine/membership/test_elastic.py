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
