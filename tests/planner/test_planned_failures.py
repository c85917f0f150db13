"""How many samples count where workers die, beside what can be worked out by hand, and beside drawn lives."""

from __future__ import annotations

import math
import random
import re

import pytest

from relaxcomm import ConfigError, Link
from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.planner.failures import Failures
from relaxcomm.planner.forecast import forecast
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.replay import Replay, shapes_only
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.planner.sites import SiteLinks
from relaxcomm_algorithms.async_model_average import async_model_average
from relaxcomm_algorithms.bsp import bsp
from relaxcomm_algorithms.local_sgd import local_sgd

ITEMS = shapes_only([(100, 100)])
FAST = Link(bytes_per_second=1e12)


def share(failures, algorithm=None, *, workers=4, seconds=0.1, links=None):
    scenario = Scenario(
        workers, StepTimes(seconds), links or OwnLinks(FAST), speeds=Speeds(0.0, 0.0, 0.0, 0.0)
    )
    replay = Replay(algorithm or bsp(), ITEMS, scenario)
    return failures.useful(replay, replay.run().step_seconds, ITEMS).share


@pytest.mark.parametrize("workers", [8, 64])
def test_those_that_are_left_go_on(workers):
    """Where nobody notices, a worker is there for L of L + A seconds."""
    found = share(Failures(100.0, 10.0, elastic=True, notice_seconds=0.0), seconds=1e-6, workers=workers)
    assert found == pytest.approx(100 / 110, abs=0.02)


def test_nobody_joins_those_who_go_on_alone():
    """The last of N dies after L (1 + 1/2 + ... + 1/N) seconds; then all are started anew."""
    found = share(Failures(100.0, 10.0, elastic=True), async_model_average(), workers=8)
    assert found == pytest.approx(100 / (100 * sum(1 / n for n in range(1, 9)) + 10), rel=0.1)


def test_with_fewer_than_the_quorum_all_begin_again():
    """As the first of two that dies after L / 2 seconds; a checkpoint of each step loses half of one."""
    failures = Failures(100.0, 10.0, elastic=True, quorum=2, saved_steps=1)
    assert share(failures, workers=2) == pytest.approx(50 / 60, rel=0.05)


def test_who_waits_loses_what_it_takes_to_notice():
    found = share(Failures(1000.0, 0.0, elastic=True, notice_seconds=2.0))
    # A death every 250 s costs 2 s, and of the step under way half.
    assert found == pytest.approx(250 / 252 - 0.05 / 252, abs=0.002)


def test_newcomers_wait_for_the_next_synchronisation():
    seldom = share(Failures(1000.0, 10.0, elastic=True, notice_seconds=0.0), local_sgd(steps=2000))
    # On average 100 s pass until then, and of the one that dies 100 s of local steps are in nobody's model.
    assert seldom == pytest.approx((1000 - 100) / (1000 + 10 + 100), abs=0.02)


def test_all_begin_again_as_lives_that_are_drawn():
    failures = Failures(120.0, 5.0, elastic=False, saved_seconds=10.0)
    drawn, kept, passed = random.Random(0), 0.0, 0.0
    for _ in range(20_000):
        life = drawn.expovariate(4 / 120.0)
        kept, passed = kept + 10.0 * (life // 10.0), passed + life + 5.0
    assert share(failures) == pytest.approx(kept / passed, rel=0.01)
    in_steps = Failures(120.0, 5.0, elastic=False, saved_steps=100)
    assert share(in_steps) == pytest.approx(share(failures), rel=1e-4)


def test_more_workers_die_more_often():
    failures = Failures(3600.0, 60.0, elastic=False, saved_seconds=600.0)
    shares = [share(failures, workers=workers) for workers in (1, 8, 64, 10_000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9
    assert shares[-1] == 0.0
    assert share(Failures(3600.0, 60.0, elastic=True), workers=64) > 0.9


def test_a_state_travels_over_the_slowest_link():
    slow = SiteLinks(4, 2, FAST, Link(bytes_per_second=4e3))  # 80 kB take 20 s
    failures = Failures(1000.0, 10.0, elastic=True, notice_seconds=0.0)
    assert share(failures, local_sgd(steps=100_000), links=slow, seconds=1e-3) < 0.95


def test_when_nobody_is_left_it_goes_on_from_a_checkpoint_or_says_so():
    saved = Failures(10.0, 1.0, elastic=True, saved_seconds=2.0)
    assert share(saved, workers=1) == pytest.approx(9 / 11, abs=0.03)
    scenario = Scenario(1, StepTimes(0.1), OwnLinks(FAST))
    alone = forecast(bsp(), ITEMS, scenario, failures=Failures(10.0, 1.0, elastic=True))
    assert alone.useful_share == pytest.approx(10 / 11, abs=0.03)
    (remark,) = (one for one in alone.remarks if "dead at once" in one)
    assert float(re.search(r"about every (\S+) s, and begin anew", remark)[1]) == pytest.approx(11, abs=0.5)
    assert not forecast(bsp(), ITEMS, scenario, failures=saved).remarks


def test_what_is_refused():
    with pytest.raises(ConfigError, match="more than 0 s"):
        Failures(0.0, 1.0, elastic=True)
    with pytest.raises(ConfigError, match="replaced after 0 s or more"):
        Failures(1.0, -math.inf, elastic=True)
    with pytest.raises(ConfigError, match="elastic: true"):
        Failures(1.0, 1.0, elastic=False)
