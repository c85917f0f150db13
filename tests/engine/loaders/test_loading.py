"""Where a rank reads on that was behind when others were lost, and is behind yet when more are lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import relaxcomm
from relaxcomm.carry.loaders import carried_loaders
from relaxcomm.network.transport import Membership

SAMPLES, EPOCHS = 48, 2


@dataclass
class Rank:
    """One that reads two epochs, one sample a step."""

    loaders: Any
    samples: Iterator[int]
    step: int = 0

    def come_to(self, step: float) -> list[int]:
        """What it reads until its clock is there, or the last epoch is over."""
        read = []
        while self.step < step and (sample := next(self.samples, None)) is not None:
            read.append(sample)
            self.step += 1
            self.loaders.catch_up(self.step)
        return read

    def go_on(self, rank: int, size: int, saved: list[dict[str, Any]], caught_up_at: int = 0) -> None:
        """Be among the ranks that are left."""
        self.loaders.go_on_with(Membership(rank, size), saved, caught_up_at)


def begun(rank: int, size: int) -> Rank:
    model = torch.nn.Linear(1, 1)
    engine = relaxcomm.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), {"algorithm": "bsp"})
    loader = engine.loader(torch.arange(SAMPLES), batch_size=1)
    one = Rank(engine._session.loaders, (int(x) for _ in range(EPOCHS) for x in loader))
    one.engine = engine  # alive as long as it
    one.go_on(rank, size, one.loaders.export())
    return one


def stands(ranks: list[Rank]) -> list[dict[str, Any]]:
    return carried_loaders([one.loaders.export() for one in ranks])


@pytest.mark.parametrize("second", [5, 9, 17])
def test_it_reads_what_it_would_have_read_if_it_had_not_been_behind(second):
    # Ranks are lost when the others' clocks are at 3 and at `second`, which may be in their second epoch.
    ranks = [begun(rank, 4) for rank in range(4)]
    prompt, slow = ranks[0], begun(0, 4)
    expected, read = [], slow.come_to(1)
    for caught_up_at, size in ((3, 3), (second, 2)):
        came_to = [one.come_to(caught_up_at) for one in ranks]
        expected += came_to[0]
        saved = stands(ranks)
        ranks = ranks[:size]
        for rank, one in enumerate(ranks):
            one.go_on(rank, size, saved)
        slow.go_on(0, size, saved, caught_up_at)
        read += slow.come_to(2)
    assert slow.loaders.read_until(slow.step) == second
    assert slow.loaders.export() == saved
    assert read + slow.come_to(math.inf) == expected + prompt.come_to(math.inf)


def test_a_checkpoint_is_where_a_rank_that_is_behind_reads_on_with_those_who_are_left():
    behind, fresh = begun(0, 2), begun(0, 1)
    saved = behind.loaders.export()
    behind.come_to(3)
    behind.go_on(0, 1, behind.loaders.export(), caught_up_at=9)
    behind.come_to(5)
    behind.loaders.restore(saved)
    assert behind.loaders.export() == saved
    assert behind.come_to(math.inf) == fresh.come_to(math.inf)


def test_ranks_whose_places_nobody_knows_read_their_share_to_the_end_of_the_epoch():
    one = begun(0, 2)
    one.go_on(0, 3, one.loaders.export(), caught_up_at=9)  # is over with the next loss
    one.come_to(3)
    one.go_on(0, 1, None)
    read = one.come_to(math.inf)
    assert len(read[:21]) == len(set(read[:21])) == SAMPLES // 2 - 3
    assert sorted(read[21:]) == list(range(SAMPLES))


def test_a_loader_that_is_made_where_a_rank_is_behind_shares_as_its_others_do():
    one = begun(0, 2)
    one.go_on(0, 1, one.loaders.export(), caught_up_at=9)
    later = one.engine.loader(torch.arange(12), batch_size=1)
    assert len(list(later)) == 6
    one.come_to(9)
    assert len(list(later)) == 12
