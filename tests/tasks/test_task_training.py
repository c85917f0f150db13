"""The training job on one rank, and how the ranks' records become the job's result."""

import json
import sys
import time
from dataclasses import replace

import pytest
import torch

from relaxcomm import config
from relaxcomm.cli.table import never_exchanged
from relaxcomm.errors import NonFiniteError
from relaxcomm.training.results import Point, RankRecord, merge
from relaxcomm.training.stopwatch import Stopwatch
from relaxcomm.training.trainer import train

SMALL = {"algorithm": "bsp", "task": {"digits": {"epochs": 3, "hidden": [32]}}, "backend": "gloo"}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def record(seconds: float, sent: int, measures=(0.5, 0.75)) -> RankRecord:
    statistics = {
        "steps": 8,
        "synchronisations": 2,
        "lssr": 0.75,
        "bytes_sent": sent,
        "bytes_received": sent + 1,
        "evaluation_bytes_sent": 7,
        "bytes_uncompressed": 4 * sent,
        "step_seconds": seconds / 8,
        "exposed_communication_seconds": 0.25,
        "hidden_communication_seconds": 0.5,
    }
    half = Point(4, seconds / 2, sent // 2, measures[0])
    by_primitive = {"all_reduce": sent - 10, "vote": 10} if sent > 50 else {"all_reduce": sent}
    return RankRecord((half, Point(8, seconds, sent, measures[1])), seconds, statistics, by_primitive)


def merged(records):
    facts = {
        "algorithm": "a/b",
        "composition": "…",
        "task": "t",
        "metric": "m",
        "higher_is_better": True,
        "device": "cpu",
        "seed": 1,
    }
    return merge(records, **facts)


def test_merge_sums_bytes_and_takes_the_slowest_time():
    result = merged([record(2.0, 100), record(4.0, 50)])
    assert result.workers == 2
    assert result.seconds == 4.0
    assert (result.bytes_sent, result.bytes_received, result.bytes_uncompressed) == (150, 152, 600)
    assert result.reduction == 4.0
    assert result.bytes_by_primitive == {"all_reduce": 140, "vote": 10}
    assert result.history == (Point(4, 2.0, 75, 0.5), Point(8, 4.0, 150, 0.75))
    assert result.measure == 0.75
    assert result.step_seconds == pytest.approx(0.375)
    assert (result.steps, result.synchronisations, result.lssr) == (8, 2, 0.75)


def test_steps_of_ranks_that_have_their_own_are_their_mean():
    one = record(2.0, 100)
    other = replace(
        one,
        statistics={**one.statistics, "steps": 3},
        history=tuple(replace(point, step=point.step // 4) for point in one.history),
    )
    result = merged([one, one, other])
    assert (result.steps, result.synchronisations, result.lssr) == (6, 2, pytest.approx(13 / 19))
    assert [point.step for point in result.history] == [3, 6]


def test_what_one_rank_of_several_exchanged_is_not_never():
    ranks = [record(1.0, 100) for _ in range(3)]
    for one, exchanged in zip(ranks, (1, 0, 0), strict=True):
        one.statistics["synchronisations"] = exchanged
    assert merged(ranks).synchronisations == 1
    assert not never_exchanged(merged(ranks))
    ranks[0].statistics["synchronisations"] = 0
    assert never_exchanged(merged(ranks))


def test_result_is_written_as_json(tmp_path):
    path = merged([record(2.0, 100)]).write(tmp_path / "new" / "folder", {"date": "today"})
    assert path.name == "a_b.json"
    written = json.loads(path.read_text())
    assert written["date"] == "today"
    assert written["history"][1] == {"step": 8, "seconds": 2.0, "bytes_sent": 100, "measure": 0.75}


NAN_TASK = """
from dataclasses import replace
from relaxcomm.tasks.digits import make as digits


def make(seed: int, calls: int = 0):
    task, evaluated = digits(seed, epochs=1, hidden=[4]), []

    def evaluate(model):
        evaluated.append(1)
        return float("nan") if len(evaluated) > calls else task.evaluate(model)

    return replace(task, evaluate=evaluate)
"""


@pytest.mark.parametrize("calls", [0, 2], ids=["while_training", "at_the_end"])
def test_a_measure_of_nan_is_an_error_with_its_place(calls, tmp_path, monkeypatch):
    (tmp_path / "nowhere.py").write_text(NAN_TASK)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("nowhere", None)
    with pytest.raises(NonFiniteError, match=r"evaluate, at .*nowhere.py:9, returned NaN.* finite"):
        train(config.load(SMALL | {"task": {"nowhere:make": {"calls": calls}}}))


def test_one_rank_trains_and_the_same_seed_gives_the_same_run():
    first, second = (train(config.load(SMALL | {"seed": 4})).result for _ in range(2))
    assert first.measure == second.measure > 0.6
    assert first.steps == 3 * 45
    assert [point.step for point in first.history] == [20, 40, 60, 80, 100, 120, 135]
    assert [point.measure for point in first.history] == [point.measure for point in second.history]
    assert (first.workers, first.bytes_sent) == (1, 0)
    assert first.history[-1].seconds == pytest.approx(first.seconds)


def test_batch_size_of_the_configuration_wins():
    assert train(config.load(SMALL | {"data": {"batch_size": 480}})).result.steps == 3 * 3


def test_clock_leaves_out_what_is_between_stop_and_start():
    clock = Stopwatch(torch.device("cpu"))
    clock.start()
    time.sleep(0.02)
    clock.stop()
    held = clock.seconds
    time.sleep(0.05)
    assert clock.seconds == held >= 0.02
    clock.start()
    time.sleep(0.01)
    assert held + 0.01 <= clock.seconds
