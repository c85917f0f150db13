"""In virtual time: mixing and its agreement hide behind compute; what it costs if they cannot."""

from __future__ import annotations

import math

import pytest
import torch

import relaxcomm
from relaxcomm.network import Link
from tests.engine.harness import World
from tests.models import take_step

LATENCY, COMPUTE, STEPS, NUMEL = 0.05, 1.0, 10, 1000
BANDWIDTH = 16_000.0
AGREEMENT = 3 * LATENCY  # of five ranks on a number
MESSAGES = 2 * 4 * NUMEL / BANDWIDTH  # to both neighbours: half of a step's compute


def clock(group, algorithm, buckets: int) -> float:
    """Virtual seconds a step, after the first."""
    layers = [torch.nn.Linear(NUMEL // buckets, 1, bias=False) for _ in range(buckets)]
    model = torch.nn.ModuleList(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"algorithm": algorithm, "bucket_bytes": 4 * NUMEL // buckets}
    if "name" not in algorithm and algorithm != "one_peer_exponential":
        config["topology"] = "ring"
    with World(group.rank(), group.size(), group).attach(model, optimizer, config) as engine:
        for step in range(STEPS + 1):
            if step == 1:
                begun = group.time()
            group.sleep(COMPUTE)
            take_step(sum(layer(torch.ones(1, NUMEL // buckets)).sum() for layer in layers), optimizer)
        seconds = (group.time() - begun) / STEPS
        engine.close(average=False)
    return seconds


def seconds(algorithm, buckets: int = 2) -> float:
    link = Link(latency_seconds=LATENCY, bytes_per_second=BANDWIDTH)
    return max(relaxcomm.simulate(lambda group: clock(group, algorithm, buckets), 5, link=link))


@pytest.mark.parametrize("buckets", [1, 4])
def test_d_psgd_costs_no_time_that_compute_can_hide(buckets):
    assert seconds("d_psgd", buckets) == pytest.approx(COMPUTE)
    assert seconds("one_peer_exponential", buckets) == pytest.approx(COMPUTE)


@pytest.mark.parametrize(("delay", "latency", "hidden"), [(1, 0.9, 1), (2, 0.9, 2), (4, 1.8, 2)])
def test_each_operation_of_a_late_exchange_has_its_share_of_the_delay(delay, latency, hidden):
    """Scatter and gather take longer than half a step each: both hide behind two steps, one behind one."""
    link, steps = Link(latency_seconds=latency * COMPUTE, bytes_per_second=math.inf), max(2, delay)
    algorithm = {"name": "local_sgd", "steps": steps, "compressor": {"quantize": {"bits": 8}}, "delay": delay}
    spent = max(relaxcomm.simulate(lambda group: clock(group, algorithm, 2), 2, link=link))
    exposed = (2 - hidden) * latency * COMPUTE / steps
    assert spent == pytest.approx(COMPUTE + exposed, rel=0.02)


def test_without_delay_the_messages_are_waited_for():
    rule = {"payload": "parameters", "exchange": "gossip"}
    # A step's agreement leaves behind them.
    exposed = MESSAGES + AGREEMENT
    assert seconds({"rules": [rule]}, buckets=1) == pytest.approx(COMPUTE + exposed, rel=1e-3)


def test_a_compressor_that_may_overflow_costs_an_agreement():
    """It is known only when the messages have come; they themselves still hide."""
    half = {"cast": {"dtype": "float16"}}
    rule = {"payload": "parameters", "exchange": "gossip", "delay": 1, "compressor": half}
    assert 0 < seconds({"rules": [rule]}) - COMPUTE < AGREEMENT + LATENCY
