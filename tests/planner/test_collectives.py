"""What a plug-in returns to a plan, of which one clear error tells where it is something else."""

from __future__ import annotations

import math
from dataclasses import replace

import networkx as nx
import pytest

from relaxcomm import Algorithm, ConfigError, Link, PluginError, Rule, Topology, TopologyError
from relaxcomm.network.operations import AllReduce, Neighbors, Request
from relaxcomm.planner.forecast import forecast
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.replay import Replay, shapes_only
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.plugin import Compressor, Exchange, Planner, PlannerFacts, RoundPlan, Stage, frozen
from relaxcomm.primitives import (
    all_gather,
    all_reduce,
    averaging_server,
    cast,
    complete,
    every,
    every_step,
    gossip,
    gradients,
    identity,
    pairwise,
    parameters,
    scatter_gather,
)

MODEL = shapes_only([(10, 10)])


def scenario(topology=None):
    link = OwnLinks(Link(bytes_per_second=1e6))
    return Scenario(4, StepTimes(0.1), link, topology=topology or complete())


def step_seconds(rule, topology=None):
    return Replay(Algorithm((rule,)), MODEL, scenario(topology)).run().step_seconds


@pytest.mark.parametrize(
    "pairs",
    [None, {}, [(0, 1)], {(0, 1): 0.0}, {(0, 4): 1.0}, {(0, 0): 1.0}, {0: 1.0}, {(0, 1): None}, {(0, 1): -1}],
    ids=str,
)
@pytest.mark.parametrize(("kind", "exchange"), [(Neighbors, gossip), (Request, pairwise)])
def test_pairs(kind, exchange, pairs):
    @frozen
    class mine(Exchange):
        facts = exchange.facts
        run = exchange.run

        def stages(self, world_size, topology):
            return [Stage(kind, pairs=lambda: pairs)]

    delay = "unbounded" if kind is Request else 0
    with pytest.raises(PluginError, match=r"^pairs of mine\(\) returned .*; return \{\(rank, other\): "):
        step_seconds(Rule(payload=parameters(), exchange=mine(), delay=delay))


def test_uneven_pairs_of_means_that_are_rounded_once():
    """Where all ranks are alike but in those, the busiest decides for all."""

    @frozen
    class mine(Exchange):
        facts = all_reduce.facts
        run = all_reduce.run

        def stages(self, world_size, topology):
            return [Stage(AllReduce)]

        def exact_stages(self, world_size, topology):
            return [Stage(Neighbors, pairs=lambda: {(0, 1): 1.0, (2, 3): 0.5})]

    rule = Rule(payload=parameters(), exchange=mine(), compressor=cast(dtype="bfloat16"))
    # Coding takes 5 ms; of 200 bytes a rank, 800 in all, rank 0 sends two thirds.
    assert step_seconds(rule) == pytest.approx(0.105 + 800 * 2 / 3 / 1e6, abs=1e-5)


@pytest.mark.parametrize("found", [None, "four", -1, 1.5, math.nan, math.inf], ids=str)
@pytest.mark.parametrize("exchange", [all_gather(), scatter_gather()], ids=str)
def test_bytes_of_a_compressor(exchange, found):
    @frozen
    class mine(Compressor):
        facts = replace(identity.facts, scope="bucket")
        encode_decode = identity.encode_decode

        def message_bytes(self, numel, element_bytes):
            return found

    with pytest.raises(PluginError, match=r"^message_bytes of mine\(\) returned .*; return a whole"):
        step_seconds(Rule(payload=gradients(), exchange=exchange, compressor=mine()))


def test_bytes_that_a_static_method_counts():
    @frozen
    class mine(Compressor):
        facts = identity.facts
        encode_decode = identity.encode_decode

        @staticmethod
        def message_bytes(numel, element_bytes):
            return numel * element_bytes

    assert mine().message_bytes(3, element_bytes=4) == 12


def test_bytes_and_awaited_of_an_exchange():
    @frozen
    class gathers(all_gather):
        facts = all_gather.facts

        def coded_bytes(self, compressor, layout, element_bytes, world_size):
            return None

    @frozen
    class serves(averaging_server):
        facts = averaging_server.facts

        def awaited(self, world_size):
            return 2

    with pytest.raises(PluginError, match=r"^coded_bytes of gathers\(\) with identity\(\) returned None"):
        step_seconds(Rule(payload=gradients(), exchange=gathers()))
    with pytest.raises(PluginError, match=r"^awaited of serves\(\) returned 2; return an Awaited"):
        step_seconds(Rule(payload=parameters(), exchange=serves()))


def test_graphs_and_weights():
    @frozen
    class no_graph(Topology):
        def graph(self, world_size, step=0):
            return None

    @frozen
    class no_weights(Topology):
        def graph(self, world_size, step=0):
            return nx.path_graph(world_size)

        def weights(self, world_size, step=0):
            return None

    rule = Rule(payload=parameters(), exchange=gossip())
    with pytest.raises(PluginError, match=r"^graph of no_graph\(\) returned None; return a networkx"):
        step_seconds(rule, no_graph())
    with pytest.raises(TopologyError, match=r"^no_weights\(\) has the nodes None, but 4 workers are"):
        step_seconds(rule, no_weights())


@pytest.mark.parametrize("found", [None, "bsp", {}], ids=str)
def test_choices(found):
    @frozen
    class mine(Planner):
        facts = PlannerFacts(after_steps=3)

        def choose(self, measured):
            return found

    rule = Rule(trigger=every(steps=4), payload=parameters(), exchange=all_reduce())
    with pytest.raises(PluginError, match=r"^choose of mine\(\) returned .*; return the pair"):
        forecast(Algorithm((rule,), planner=mine()), MODEL, scenario())


def test_numbers_below_one_that_are_declared():
    with pytest.raises(ConfigError, match="rounds = 0 is not allowed: write a whole number, 1 or more"):
        replace(identity.facts, rounds=0)
    with pytest.raises(ConfigError, match="period_steps = 0 is not allowed"):
        replace(every_step.facts, period_steps=0)
    with pytest.raises(ConfigError, match="epochs = 0 is not allowed"):
        RoundPlan(epochs=0, fraction=1.0, clients=None)
