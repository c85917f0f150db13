"""Models judged after a trial, on real ranks."""

from pathlib import Path

import pytest
import torch

from benchmarks.lab.snapshots import Snapshots
from relaxcomm.tasks import Task
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks
RANKS = 3


def judged(rank, folder, own, spread):
    """Judge points of which the first rank's quality is `own`, and ranks are `spread` apart."""
    model = torch.nn.Linear(1, 1, bias=False)
    seen = []

    def evaluate(model):
        seen.append(float(model.weight))
        return seen[-1]

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    task = Task(
        model=model,
        optimizer=optimizer,
        train_data=[0],
        loss=lambda model, batch: model(batch),
        evaluate=evaluate,
        epochs=1,
    )
    snapshots = Snapshots(Path(folder), task, len(own))
    for value in own:
        with torch.no_grad():
            model.weight.fill_(value + rank * spread)
        snapshots.take()
    torch.distributed.barrier()
    found = snapshots.judge(lambda qualities: sum(one >= 10 for one in qualities) >= 2)
    return found, len(seen)


def test_nothing_more_is_judged_when_it_is_known_but_the_last(tmp_path):
    own = [1, 2, 10, 11, 12, 13, 14, 15, 16, 17]
    answers = run_ranks(judged, RANKS, str(tmp_path), own, 0.0)
    for found, _ in answers:
        assert sorted(found) == [0, 1, 2, 3, 4, 5, 9], "in turns of three, until two are good, and the last"
        assert {index: one["own"] for index, one in found.items()} == {index: own[index] for index in found}
    assert [count for _, count in answers] == [3, 2, 2], "equal models are judged once"


def test_both_the_first_model_and_the_mean_are_waited_for(tmp_path):
    own = [1, 10, 11, 12, 13, 14, 15, 16]
    answers = run_ranks(judged, RANKS, str(tmp_path), own, -3.0)
    for found, _ in answers:
        assert sorted(found) == [0, 1, 2, 3, 4, 5, 7], "means are 3 less, so they are good from the fifth on"
        assert found[4] == {"own": 13, "mean": 10}


def test_what_never_gets_good_is_judged_to_the_end(tmp_path):
    (found, _), *_ = run_ranks(judged, RANKS, str(tmp_path), [1, 2, 3, 4], 0.0)
    assert sorted(found) == [0, 1, 2, 3]
