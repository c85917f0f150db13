"""Workers that ask are seen soon, on all ranks at the same synchronisation."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import relaxcomm
from relaxcomm.engine.membership.admission import Newcomers
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.step.world import World


def seen_after(group: relaxcomm.InProcessGroup, asked: float, seconds: list[float]) -> float:
    """How long a worker waits that asks at a time, where synchronisations are so many seconds apart."""
    elastic = SimpleNamespace(newest=lambda: 3 if group.time() >= asked else -1)
    transport = group.transport()
    newcomers = Newcomers(elastic, World(transport, Statistics(transport.counters)))
    for passed in seconds:
        group.sleep(passed)
        if newcomers.synchronised() >= 0:
            return group.time() - asked
    return float("inf")


@pytest.mark.parametrize(
    ("seconds", "limit"),
    [
        ([0.01] * 1000, 1.1),
        ([1e-7] + [0.01] * 1000, 1.4),  # a generation begins with a short step
        ([0.001] * 3000 + [0.5] * 200, 65),
        ([2.0] * 50, 4.1),
    ],
)
def test_nobody_waits_for_long(seconds, limit):
    asked = max(0.0, sum(seconds) / 2 - 20)
    waited = relaxcomm.simulate(lambda group: seen_after(group, asked, seconds), 3)
    assert len(set(waited)) == 1
    assert waited[0] <= limit
