"""What a rank that others come to counts as exchanged: against the meetings that its bytes tell."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from relaxcomm.primitives.exchanges.pairwise import Partner
from relaxcomm.step import replica_norms
from tests.engine.harness import in_process
from tests.models import CASES, take_step, trainable

SECONDS = 1.0, 4.37, 1.7  # of a step: those of rank 1, which asks the others, take longest
STEPS = 70, 14, 42


def counted(world):
    """After each step: models received, synchronisations, the time of the last, and the distance."""
    model, optimizer = trainable("toy", "plain", seed=world.rank)
    numel = sum(parameter.numel() for parameter in model.parameters())
    size = numel * next(model.parameters()).element_size()
    config = {"algorithm": "ad_psgd", "bucket_bytes": size // 2, "metrics": {"port": None}}
    rows = []
    with world.attach(model, optimizer, config) as engine:
        seen = engine._session.bound.world.statistics
        begun = seen["bytes_received"]  # with the model that all begin with
        for step in range(STEPS[world.rank]):
            world.group.sleep(SECONDS[world.rank])
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            distance = float(seen.latest.get("replica_distance", -1.0))
            models = (seen["bytes_received"] - begun) / size
            rows.append((models, seen.synchronisations, seen.last_synchronisation, distance))
        buckets = len(engine._session.bound.plan.buckets)
        return rows, buckets, dict(seen.in_flight.by_rule), seen["lssr"], seen["hidden_communication_seconds"]


def test_a_passive_rank_counts_the_steps_in_which_it_was_met(monkeypatch):
    monkeypatch.setattr(replica_norms, "_SHARE", np.inf)  # each distance is taken
    found = in_process(counted, 3)
    assert all(buckets >= 2 for _, buckets, *_ in found)
    asked, num_buckets, flights, *_ = found[1]
    assert asked[-1][1] == STEPS[1]
    assert [count for count, _ in flights.values()] == [num_buckets * (STEPS[1] - 1)]  # one is on its way
    assert len({distance for *_, distance in asked}) == STEPS[1]
    meetings, halves = 0, set()
    for rank in (0, 2):
        rows, _, flights, lssr, hidden = found[rank]
        met = [round(row[0]) for row in rows]
        meetings += met[-1]
        assert [row[0] for row in rows] == met  # whole models
        assert [row[1] for row in rows] == [0, *met[:-1]]  # it takes over in the next step what has come
        assert lssr == 1 - rows[-1][1] / STEPS[rank]
        assert (flights, hidden) == ({}, 0.0)
        for before, now in pairwise(rows):
            assert (now[2] == before[2]) == (now[3] == before[3]) == (now[1] == before[1])
        assert rows[0][1:] == (0, None, -1.0)
        halves |= {distance for *_, distance in rows} - {-1.0}
    assert meetings == len(halves) == STEPS[1]
    known = [distance for *_, distance in asked]  # of all but the last, whose answer is on its way
    assert sum(np.isclose(half, known, rtol=1e-5).any() for half in halves) == STEPS[1] - 1


@pytest.mark.parametrize("others_came", [False, True])
def test_a_passive_rank_that_is_resumed_knows_whether_it_was_met(others_came):
    saved, resumed = (Partner(0, torch.zeros(2), lambda data: data.view(torch.float32)) for _ in range(2))
    if others_came:
        saved.answer(1, torch.ones(2).view(torch.uint8))
    resumed.restore(saved.export())
    resumed.answer(0, torch.zeros(2).view(torch.uint8))
    assert resumed.has_met() == others_came
