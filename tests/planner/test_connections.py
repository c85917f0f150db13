"""What a worker keeps for every other one is told where it is too much."""

from __future__ import annotations

import pytest

from relaxcomm import Link
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.priced_plan import PricedPlan
from relaxcomm.planner.remarks import too_many
from relaxcomm.planner.replay import shapes_only
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.topology import complete, ring


@pytest.mark.parametrize(
    ("name", "workers", "topology", "words"),
    [
        ("bsp", 300, complete(), []),
        ("bsp", 1000, complete(), ["2,997 connections, 3 to each"]),
        ("d_psgd", 1000, ring(), ["3,996 connections, 4 to each"]),
        ("ssp", 8, complete(), []),
        ("ssp", 300, complete(), ["1,495 connections, 5 to each", "598 threads for its services"]),
    ],
)
def test_what_gloo_keeps_for_each_other_worker(name, workers, topology, words):
    on = Scenario(workers, StepTimes(0.1), OwnLinks(Link()), topology, bucket_bytes=4096)
    said = too_many(PricedPlan(parse_algorithm(name), shapes_only([(1000,), (900,)]), on))
    assert len(said) == len(words)
    assert all(part in whole for part, whole in zip(words, said, strict=True))
