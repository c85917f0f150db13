"""Real training on simulated workers: its time is the replay's, its quality is what training gives."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from relaxcomm import Link
from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.config import load
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.replay import Replay
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.planner.sites import SiteLinks
from relaxcomm.tasks.task_loader import find_task
from relaxcomm.tensors.items import Item
from relaxcomm.training.pilot import simulated_config, train_simulated
from relaxcomm.training.pilot_statistics import Pilot, Spread, best_by
from relaxcomm.training.results import Point

pytest.importorskip("sklearn")
ALIKE = StepTimes(0.05)
TASK = {"digits": {"epochs": 1, "hidden": [32, 32]}}
CODING = Speeds(coding_base_seconds=0.004, coding_entry_seconds=1e-7)


GROUPED = {"name": "hierarchical_local_sgd", "steps": 3}


def sites(workers, number):
    return SiteLinks(workers, number, Link(1e-4, 1e7), Link(0.002, 1e5))


def config(algorithm, workers=8, **more):
    return load({"algorithm": algorithm, "workers": workers, "task": TASK, "bucket_bytes": 4096, **more})


def scenario(workers=8, times=ALIKE, **more):
    links = SiteLinks(workers, 2, Link(1e-4, 1e7), Link(0.002, 1e6))
    return Scenario(workers, times, links, bucket_bytes=4096, speeds=CODING, **more)


@pytest.mark.every_other("algorithm", of=3)
@pytest.mark.parametrize(
    ("algorithm", "tolerance"),
    [
        ("bsp", 0.05),  # ranks also meet when the first backward ends
        ({"name": "local_sgd", "steps": 4, "delay": 2}, 0.02),
        ({"name": "signsgd"}, 0.15),  # its second operations begin when the next bucket is ready
        ({"name": "ssp", "staleness": 2}, 0.15),
    ],
)
def test_training_takes_as_long_as_the_replay_of_it(algorithm, tolerance):
    """Over slow links between two sites, with coding and several buckets."""
    takes_as_long(algorithm, {}, scenario(), tolerance)


@pytest.mark.parametrize(
    ("algorithm", "topology", "links"),
    [
        (GROUPED, {"hierarchical": {"sizes": 4}}, sites(8, 2)),
        (GROUPED, {"hierarchical": {"sizes": [3, 2]}}, sites(5, 2)),
        (GROUPED, {"hierarchical": {"sizes": [2, 2, 1]}}, sites(5, 3)),
        ("d_psgd", "star", sites(5, 2)),
        ("d_psgd", "star", OwnLinks(Link(0.002, 1e5))),
    ],
    ids=["equal groups", "unequal", "three groups", "star over sites", "star"],
)
def test_ranks_that_send_more_than_others_share_a_link_as_in_the_replay(algorithm, topology, links):
    workers = links.workers if isinstance(links, SiteLinks) else 5
    on = replace(scenario(workers), links=links)
    takes_as_long(algorithm, {"topology": topology}, on, 0.1)


def takes_as_long(algorithm, more, on, tolerance):
    settings = config(algorithm, on.workers, data={"batch_size": 18}, **more)
    on = replace(on, topology=settings.topology)
    found = train_simulated(settings, find_task(settings.task), on)
    items = [Item(n, p) for n, p in find_task(TASK).build(0).model.named_parameters()]
    replayed = Replay(settings.algorithm, items, on).run(9, first=0)
    assert found.steps > 9  # at the end the models are averaged
    ninth = next(point for point in found.history if point.step == 9)
    assert ninth.seconds / 9 == pytest.approx(replayed.step_seconds, rel=tolerance)


def test_workers_in_one_process_learn_what_workers_in_processes_learn():
    """Full precision and full batches: all workers together take the steps of one."""
    alone, eight = (
        train_simulated(
            config("bsp", n, data={"batch_size": 64 // n}),
            find_task({"digits": {"epochs": 2, "hidden": [32], "dropout": 0.0}}),
            scenario(n),
        )
        for n in (2, 8)
    )
    assert alone.steps == eight.steps
    assert eight.measure == pytest.approx(alone.measure, abs=0.05)
    assert eight.measure > 0.5


def test_the_same_seed_gives_the_same_run_and_evaluations_take_no_time():
    runs = [train_simulated(config("local_sgd"), find_task(TASK), scenario()) for _ in range(2)]
    assert runs[0].history == runs[1].history
    first = runs[0].history[0]
    assert first.seconds == pytest.approx(0.05 * first.step, rel=1e-6), "nothing is exchanged before step 16"


def test_slow_workers_hold_up_those_who_wait():
    slow = StepTimes(0.05, straggling=0.1, straggling_times=5.0)
    waits, goes_on = (
        train_simulated(config(name), find_task(TASK), scenario(times=slow)).history[-2].seconds
        for name in ("bsp", "local_sgd")
    )
    assert waits > 1.3 * goes_on


def test_a_pilot_configuration_leaves_nothing_behind():
    job = load(
        {
            "algorithm": "bsp",
            "task": "digits",
            "output": "runs",
            "metrics": {},
            "workers": 2,
            "checkpoint": {"path": "kept", "every_steps": 5},
            "membership": {"elastic": True},
        }
    )
    made = simulated_config(job, "local_sgd", Scenario(64, StepTimes(1.0), OwnLinks(Link()), seed=7))
    assert (made.output, made.metrics, made.checkpoint, made.membership.elastic) == (None, None, None, False)
    assert (made.workers, made.seed, made.algorithm.name) == (64, 7, "local_sgd")


def pilot(name, *histories):
    """Runs of an algorithm from `(seconds, measure)`."""
    result = train_simulated(config("bsp", 1), find_task(TASK), Scenario(1, StepTimes(1.0), OwnLinks(Link())))
    runs = [
        {
            "history": tuple(Point(i, s, 0, m) for i, (s, m) in enumerate(rows)),
            "measure": rows[-1][1],
            "seconds": rows[-1][0],
        }
        for rows in histories
    ]
    return Pilot(name, 1, tuple(type(result)(**{**vars(result), **run}) for run in runs))


def test_who_is_first_at_a_quality():
    fast = pilot("fast", [(1.0, 0.5), (2.0, 0.8)], [(1.0, 0.7), (2.0, 0.8)], [(1.0, 0.6), (2.0, 0.65)])
    good = pilot("good", [(3.0, 0.9)], [(3.5, 0.9)], [(4.0, 0.95)])
    assert fast.seconds_to(0.7) == Spread(2.0, 1.0, math.inf)
    assert [one.name for one, _ in best_by([good, fast], 0.7, 0.0)] == ["fast", "good"]
    assert [one.name for one, _ in best_by([good, fast], 0.9, 0.0)] == ["good", "fast"]
    assert fast.measure_after(1.5) == Spread(0.6, 0.5, 0.7)
    assert good.measure_after(1.5) is None
    assert [one.name for one, _ in best_by([good, fast], None, 5.0)] == ["good", "fast"]
