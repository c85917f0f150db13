"""Slow links between groups: what a hierarchical exchange saves, and whether what is told does it."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import networkx as nx
import pytest
import yaml

from relaxcomm import Link
from relaxcomm.config import load
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.planner.forecast import forecast
from relaxcomm.planner.links import GraphLinks, OwnLinks
from relaxcomm.planner.replay import Replay, shapes_only
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.planner.sites import SiteLinks
from relaxcomm.primitives import hierarchical

MODEL = shapes_only([(1000, 1000)])
WORKERS = 8


def scenario(links):
    return Scenario(WORKERS, StepTimes(0.1), links)


def two_sites(between=Link(0.01, 1e7)):  # noqa: B008  # frozen
    return SiteLinks(WORKERS, 2, Link(1e-4, 1e9), between)


def remark(algorithm, links):
    found = forecast(parse_algorithm(algorithm), MODEL, scenario(links), utilisations=())
    return next((one for one in found.remarks if "averaged inside each first" in one), None)


@pytest.mark.parametrize(
    "algorithm",
    [
        "bsp",
        {"name": "local_sgd", "steps": 8, "delay": 2},
        {"name": "diloco", "steps": 10},
        {"name": "post_local_sgd", "after_steps": 20},
    ],
)
def test_what_is_to_be_written_takes_what_is_promised(algorithm):
    said = remark(algorithm, two_sites())
    told = re.search(r"takes (\S+ m?s) instead of (\S+ m?s), ", said).groups()
    promised, now = (float(number) * {"s": 1.0, "ms": 1e-3}[unit] for number, unit in map(str.split, told))
    text = re.search(r"write topology: (.*) and algorithm: (.*)", said)
    job = load(
        {"topology": yaml.safe_load(text[1]), "algorithm": yaml.safe_load(text[2]), "workers": WORKERS}
    )
    on = scenario(two_sites())
    seconds = Replay(job.algorithm, MODEL, replace(on, topology=job.topology)).run().step_seconds
    assert seconds == pytest.approx(promised, rel=0.01)
    assert Replay(parse_algorithm(algorithm), MODEL, on).run().step_seconds == pytest.approx(now, rel=0.01)
    assert promised < 0.98 * now


def test_half_the_bytes_pass_between_two_sites_and_few_messages_wait():
    """A ring carries 2 (N - 1) / N of the model between sites in as many messages; groups once, in 2 of 4."""
    on = scenario(two_sites())
    ring = Replay(parse_algorithm("bsp"), MODEL, on).run().step_seconds
    assert ring == pytest.approx(0.1 + 1.75 * 4e6 / 1e7 + 14 * 0.0101)
    hierarchy = load(
        {
            "topology": {"hierarchical": {"sizes": 4}},
            "algorithm": {"rules": [{"payload": "gradients", "exchange": "hierarchical_all_reduce"}]},
        }
    )
    groups = Replay(hierarchy.algorithm, MODEL, replace(on, topology=hierarchy.topology)).run().step_seconds
    inside = 1.5 * 4e6 / 1e9 + 2 * 1e-4
    assert groups == pytest.approx(0.1 + inside + 4e6 / 1e7 + 2 * 0.0101)


@pytest.mark.parametrize("sizes", [[2, 1, 1], [3, 3, 2, 2], [3, 3, 2, 2, 2, 2, 2], [1, 1, 1]])
def test_as_many_sites_as_asked_for_are_planned(sizes):
    links = SiteLinks(sum(sizes), len(sizes), Link(bytes_per_second=math.inf), Link(bytes_per_second=1e7))
    assert [len(group) for group in links.groups] == sizes
    at = [site for site, size in enumerate(sizes) for _ in range(size)]
    for one, other in itertools.permutations(range(len(at)), 2):
        assert (links.way([(one, other)]).seconds_per_byte > 0) == (at[one] != at[other])


@pytest.mark.parametrize("sizes", [(4, 3), (3, 2, 2), (3, 3, 2, 2)])
def test_the_largest_group_and_the_smallest_send_what_they_must(sizes):
    """A worker in a group of n sends a message 2 (n - 1) / n times, and each of G sites 2 (G - 1) / G."""
    workers, number, largest = sum(sizes), len(sizes), sizes[0]
    links = SiteLinks(workers, number, Link(1e-4, 1e9), Link(0.01, 1e7))
    on = Scenario(workers, StepTimes(0.1), links, hierarchical(sizes=sizes))
    algorithm = {"rules": [{"payload": "gradients", "exchange": "hierarchical_all_reduce"}]}
    seconds = Replay(parse_algorithm(algorithm), MODEL, on).run().step_seconds
    inside = 2 * (largest - 1) / largest * 4e6 / 1e9 + 2 * 1e-4
    assert seconds == pytest.approx(0.1 + inside + 2 * (number - 1) / number * 4e6 / 1e7 + 2 * 0.0101)


def test_nothing_is_said_where_nothing_is_saved():
    assert remark("bsp", OwnLinks(Link(0.01, 1e7))) is None
    assert remark("bsp", two_sites(between=Link(0.0, 1e12))) is None
    assert remark("topk_sgd", two_sites()) is None, "a hierarchical exchange takes dense messages alone"


def sites(numbered):
    graph = nx.Graph()
    for held in (numbered[:4], numbered[4:]):
        for one in held:
            for other in held:
                if one < other:
                    graph.add_edge(one, other, bandwidth=1e9, latency=1e-4)
    graph.add_edge(numbered[3], numbered[4], bandwidth=1e7, latency=0.01)
    return GraphLinks(graph, None)


def test_groups_of_a_graph_are_parted_by_its_slow_links():
    assert sites(range(8)).groups == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert "sizes: [4, 4]" in remark("bsp", sites(range(8)))
    assert sites([0, 2, 4, 6, 1, 3, 5, 7]).groups is None, "the groups cannot be written"
    assert GraphLinks(nx.path_graph(4), Link(0.0, 1e6)).groups is None
