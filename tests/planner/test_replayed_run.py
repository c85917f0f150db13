"""A replay beside ranks that train over the same links in virtual time: operation by operation."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import Link, attach, simulate
from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.config.grammar import parse_algorithm, parse_primitive
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.planned_network import PlannedNetwork
from relaxcomm.planner.remarks import remarks_on
from relaxcomm.planner.replay import Replay
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.planner.sites import SiteLinks
from relaxcomm.tensors.items import Item
from relaxcomm.training.pilot import Pace
from tests.models import take_step

FAR = Link(latency_seconds=0.02, bytes_per_second=2e6)
SIZE, LAYERS, WORKERS = 32, 3, 4
TIMES = StepTimes(0.05)
GROUPS = {"hierarchical": {"sizes": 2}}


def make_model(dtype):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(SIZE, SIZE, bias=False, dtype=dtype) for _ in range(LAYERS)]
    return torch.nn.Sequential(*layers)


def simulated(algorithm, topology, link, dtype, steps, times=TIMES, workers=WORKERS):
    """Seconds and bytes of a step, on average over the ranks, after as many steps."""
    drawn = times.draw(2 * steps, workers, 0)

    def train(group):
        model, pace = make_model(dtype), Pace(group, times, drawn[:, group.rank()])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        pace.follow(model)
        config = {"algorithm": algorithm, "topology": topology, "bucket_bytes": SIZE**2 * dtype.itemsize}
        with attach(model, optimizer, config, process_group=group) as engine:
            for step in range(2 * steps):
                if step == steps:
                    began, sent = group.time(), engine.statistics["bytes_sent"]
                pace.forward(step, 1.0)
                take_step(model(torch.ones(2, SIZE, dtype=dtype)).sum(), optimizer)
            taken = group.time() - began, engine.statistics["bytes_sent"] - sent
            engine.close(average=False)
        return [one / steps for one in taken]

    return [sum(one) / workers for one in zip(*simulate(train, workers, link=link), strict=True)]


def replay_of(algorithm, topology="complete", link=FAR, dtype=torch.float32, times=TIMES, workers=WORKERS):
    items = [Item(name, one) for name, one in make_model(dtype).named_parameters()]
    graph, bucket_bytes = parse_primitive("topology", topology), SIZE**2 * dtype.itemsize
    on = Scenario(
        workers,
        times,
        OwnLinks(link) if isinstance(link, Link) else link,
        topology=graph,
        speeds=Speeds(0.0, 0.0, 0.0, 0.0),
        bucket_bytes=bucket_bytes,
    )
    return Replay(parse_algorithm(algorithm), items, on), items


LATE_GOSSIP = {"rules": [{"payload": "parameters", "exchange": "gossip", "delay": 1}]}
LATE_GRADIENTS = {"rules": [{"payload": "gradients", "exchange": "scatter_gather", "delay": 2}]}
EIGHT_BITS = {"quantize": {"bits": 8}}


@pytest.mark.parametrize(
    ("algorithm", "topology", "steps"),
    [
        pytest.param(
            {"name": "choco_sgd", "compressor": EIGHT_BITS, "gamma": 0.5}, "ring", 4, id="asked after"
        ),
        pytest.param(LATE_GOSSIP, "ring", 4, id="asked beside what is late"),
        pytest.param(LATE_GRADIENTS, "complete", 4, id="gathered when it is due"),
        pytest.param({"name": "qsgd"}, "complete", 4, id="scattered and gathered"),
        pytest.param({"name": "powersgd", "matrix_rank": 2}, "complete", 4, id="two rounds"),
        pytest.param({"name": "hierarchical_local_sgd", "steps": 4}, GROUPS, 4, id="groups"),
        pytest.param({"name": "ssp", "staleness": 0}, "complete", 4, id="a server"),
        pytest.param({"name": "heloco", "steps": 2}, "complete", 4, id="a quorum"),
        pytest.param(
            {"name": "local_sgd", "steps": 2, "compressor": EIGHT_BITS}, "complete", 4, id="all alike"
        ),
        pytest.param({"name": "selsync", "threshold": 0.0}, "complete", 4, id="votes"),
        pytest.param({"name": "async_model_average"}, "complete", 12, id="whenever it comes"),
    ],
)
def test_a_replay_takes_as_long_and_sends_as_much(algorithm, topology, steps):
    found = replay_of(algorithm, topology)[0].run()
    seconds, sent = simulated(algorithm, topology, FAR, torch.float32, steps)
    assert found.step_seconds == pytest.approx(seconds, rel=0.015)
    assert found.sent_bytes == pytest.approx(sent, rel=0.02)


def test_a_worker_that_is_ahead_sends_again_when_its_own_last_round_is_there():
    """Not in the step in which all others do so, of which it is ahead."""
    times, near = StepTimes(0.05, 0.01), Link(latency_seconds=0.001, bytes_per_second=1e7)
    found = replay_of("async_model_average", link=near, times=times)[0].run(40, first=40)
    seconds, sent = simulated("async_model_average", "complete", near, torch.float32, 40, times)
    assert found.step_seconds == pytest.approx(seconds, rel=0.01)
    assert found.sent_bytes == pytest.approx(sent, rel=0.05)


def test_servers_that_are_asked_at_once_answer_over_all_links():
    slow = Link(latency_seconds=0.001, bytes_per_second=1e5)
    seconds, _ = simulated("ssp", "complete", slow, torch.float32, 12)
    assert replay_of("ssp", link=slow)[0].run().step_seconds == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(
    ("exchange", "topology"), [("all_reduce", "complete"), ("hierarchical_all_reduce", GROUPS)]
)
def test_halves_of_parameters_are_summed_in_full_precision(exchange, topology):
    """In parts, of which one goes to each rank at once, and between groups at twice the width."""
    algorithm = {"rules": [{"payload": "parameters", "exchange": exchange}]}
    found = replay_of(algorithm, topology, dtype=torch.bfloat16)[0].run()
    seconds, sent = simulated(algorithm, topology, FAR, torch.bfloat16, 4)
    assert found.step_seconds == pytest.approx(seconds, rel=0.01)
    assert found.sent_bytes == pytest.approx(sent, rel=0.02)


@pytest.mark.parametrize("sizes", [(4, 1), (2, 2, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_each_operation_other_ranks_of_uneven_groups_are_the_busiest(sizes, dtype):
    slow, groups = Link(latency_seconds=0.005, bytes_per_second=1e5), {"hierarchical": {"sizes": sizes}}
    algorithm = {"rules": [{"payload": "parameters", "exchange": "hierarchical_all_reduce"}]}
    replay, _ = replay_of(algorithm, groups, slow, dtype, workers=sum(sizes))
    found = replay.run()
    for network in (slow, PlannedNetwork(replay.plan)):
        seconds, sent = simulated(algorithm, groups, network, dtype, 4, workers=sum(sizes))
        assert found.step_seconds == pytest.approx(seconds, rel=0.01)
        assert found.sent_bytes == pytest.approx(sent, rel=0.01)


def test_late_averages_of_halves_hide_behind_the_steps_until_they_are_due():
    """Each of their two operations has half of the delay to hide in."""
    late = {"name": "local_sgd", "steps": 4, "delay": 4}
    slow = Link(latency_seconds=0.01, bytes_per_second=1e5)
    seconds, _ = simulated(late, "complete", slow, torch.bfloat16, 8)
    assert replay_of(late, link=slow, dtype=torch.bfloat16)[0].run().step_seconds == pytest.approx(seconds)
    assert seconds == pytest.approx(0.05)


def test_buckets_of_parameters_go_side_by_side():
    """None waits for the first operation of the one before: there are 1 and 3 messages in turn, for all."""
    algorithm = {"name": "local_sgd", "steps": 4, "compressor": EIGHT_BITS}
    seconds, _ = simulated(algorithm, "complete", Link(latency_seconds=0.02), torch.float32, 4)
    assert seconds == pytest.approx(0.05 + (1 + 3) * 0.02 / 4)


def test_how_many_exchanges_in_pairs_outlast_steps_is_said_to_be_uncertain():
    slow = Link(latency_seconds=0.001, bytes_per_second=1e5)
    replay, items = replay_of("ad_psgd", "ring", slow)
    _, sent = simulated("ad_psgd", "ring", slow, torch.float32, 40)
    assert replay.run().sent_bytes == pytest.approx(sent, rel=1 / 3)
    assert any("a third less or more" in one for one in remarks_on(replay, items, float("inf")))
    fast, items = replay_of("ad_psgd", "ring", Link(latency_seconds=0.001, bytes_per_second=2e7))
    assert not any("a third less or more" in one for one in remarks_on(fast, items, float("inf")))


def test_exchanges_in_pairs_between_sites_pass_the_links_between_those_pairs():
    between = SiteLinks(WORKERS, 2, Link(0.001, 1e8), Link(0.005, 4e5))
    replay, _ = replay_of("ad_psgd", "ring", between)
    _, sent = simulated("ad_psgd", "ring", PlannedNetwork(replay.plan), torch.float32, 30)
    assert replay.run().sent_bytes == pytest.approx(sent, rel=1 / 3)


def test_what_a_trigger_may_save_is_said():
    replay, items = replay_of({"name": "selsync", "threshold": 1e9})
    assert replay.run(without={0}).step_seconds == pytest.approx(0.05 + 4 * 0.02)  # votes of three numbers
    said = " ".join(remarks_on(replay, items, float("inf")))
    assert "if it never did, a step would take 130 ms and send 0 B" in said
