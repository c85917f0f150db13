"""What is told when a run goes on among other ranks."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from relaxcomm.engine.elastic import Elastic
from relaxcomm.network.generations import Generation, Generations
from relaxcomm.network.meeting_place import MeetingPlace
from relaxcomm.network.transport import Membership

LIMIT = timedelta(seconds=5)
LATE = "a rank was late, so what was under way is given up, but none is lost: 3 ranks go on from step 9"


@pytest.mark.parametrize(
    ("lost", "joined", "in_order", "told"),
    [
        ({3: "has ended"}, (), False, "rank 3 has ended: 3 ranks go on from step 9"),
        ({}, (2,), True, "worker 2 joins: 3 ranks go on from step 9"),
        ({}, (), False, LATE),
        ({}, (), True, None),  # who has asked has ended before it joined
    ],
)
def test_each_change_is_told(lost, joined, in_order, told, capsys):
    place = MeetingPlace(dist.HashStore(), "run", Membership(0, 3), (0, 1, 2), LIMIT, LIMIT)
    generations = Generations(place, 3, 1.0)
    generations.current = Generation(1, (0, 1, 2), lost, joined)
    Elastic(generations, 1.0, 1).say(9, in_order=in_order)
    assert capsys.readouterr().err == ("" if told is None else f"relaxcomm: {told}\n")
