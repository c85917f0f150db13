"""What a topology does wrong is found before a run is."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import islice
from typing import ClassVar

import networkx as nx
import numpy as np
import pytest
import torch

from relaxcomm import Topology, TopologyError, attach, from_networkx, simulate
from relaxcomm.checks import suite
from relaxcomm.checks.compositions import algorithm_around
from relaxcomm.checks.finding import attempt
from relaxcomm.checks.topologies_hold import topology_checks
from relaxcomm.checks.trial_problem import Trial
from relaxcomm.plugin import frozen
from relaxcomm.primitives import (
    complete,
    gossip,
    hierarchical,
    in_turn,
    one_peer_exponential,
    push_sum,
    random_pairs,
    ring,
    star,
)


@frozen
class pairs(Topology):
    """Pairs that take turns."""

    changes: ClassVar[bool] = True

    def graph(self, world_size, step=0):
        graph = nx.empty_graph(world_size)
        ends = ((rank, (rank + 1) % world_size) for rank in range(step % 2, world_size, 2))
        graph.add_edges_from(pair for pair in ends if pair[0] != pair[1])
        return graph

    def period_steps(self, world_size):
        return 2


@frozen
class pairs_of_another_period(pairs):
    def period_steps(self, world_size):
        return 3


@frozen
class pairs_in_secret(pairs):
    changes: ClassVar[bool] = False


@frozen
class pairs_of_step_0(Topology):
    """Has a graph for each step, of which one would be used."""

    def graph(self, world_size, step=0):
        return pairs().graph(world_size, step) if step else nx.cycle_graph(world_size)


@frozen
class staying(pairs):
    def graph(self, world_size, step=0):
        return nx.cycle_graph(world_size)


@frozen
class unbalanced(Topology):
    def graph(self, world_size, step=0):
        return nx.cycle_graph(world_size)

    def weights(self, world_size, step=0):
        return {rank: {rank: 0.5, (rank + 1) % world_size: 0.7} for rank in range(world_size)}


@frozen
class weights_in_turn(Topology):
    """Whose graph stays, and whose weights do not."""

    def graph(self, world_size, step=0):
        return nx.cycle_graph(world_size)

    def weights(self, world_size, step=0):
        own = 0.5 if step % 2 else 0.25
        return {rank: {rank: own, (rank + 1) % world_size: 1 - own} for rank in range(world_size)}


@frozen
class drawn(pairs):
    def graph(self, world_size, step=0):
        return nx.gnp_random_graph(world_size, 0.5, seed=int(torch.randint(0, 2**31, ())))


@frozen
class careless(Topology):
    def graph(self, world_size, step=0):
        return nx.random_regular_graph(3, world_size, seed=0)


@frozen
class slow_switch(pairs):
    """A ring for 20 steps, then a star for 20."""

    def graph(self, world_size, step=0):
        return nx.star_graph(world_size - 1) if step % 40 >= 20 else nx.cycle_graph(world_size)

    def period_steps(self, world_size):
        return 40


@frozen
class pairs_of_one_number(pairs):
    """Right, for one number of workers."""

    number: int

    def graph(self, world_size, step=0):
        if world_size != self.number:
            raise TopologyError(f"a graph of {self.number} workers")
        return super().graph(world_size, step)


@frozen
class pairs_for_half_the_workers(pairs):
    """Whose period is no whole number for some, and nothing for one."""

    whole: bool

    def period_steps(self, world_size):
        return world_size // 2 if self.whole else world_size / 2


@frozen
class divided(Topology):
    """Two halves."""

    more: int = 0
    unsaid: int = 0

    has_groups: ClassVar[bool] = True

    def graph(self, world_size, step=0):
        return nx.complete_graph(world_size)

    def groups(self, world_size):
        if world_size < 2:
            raise TopologyError("divides 2 workers or more")
        half = world_size // 2
        return [list(range(half + self.more)), list(range(half, world_size - self.unsaid))]


@frozen
class divided_with_nobody(divided):
    def groups(self, world_size):
        return [*super().groups(world_size), []]


@frozen
class divided_into_nothing(divided):
    def groups(self, world_size):
        return None


@frozen
class divided_in_secret(divided):
    has_groups: ClassVar[bool] = False


@frozen
class ring_of_all_pairs(Topology):
    all_pairs: ClassVar[bool] = True

    def graph(self, world_size, step=0):
        return nx.cycle_graph(world_size)


@frozen
class all_pairs_at_first(pairs):
    all_pairs: ClassVar[bool] = True

    def graph(self, world_size, step=0):
        return super().graph(world_size, step) if step % 2 else nx.complete_graph(world_size)


EVERY = ["links", "repeats", "period", "changes", "facts"]
NO_GROUPS = (divided(more=1), divided(unsaid=1), divided_with_nobody(), divided_into_nothing())


@pytest.mark.parametrize(
    ("topology", "broken"),
    [
        *((one, []) for one in (pairs(), ring(), random_pairs(), one_peer_exponential())),
        *((one, []) for one in (hierarchical(sizes=(2, 3)), in_turn(topologies=(ring(), star())))),
        (from_networkx(nx.path_graph(7)), []),
        (from_networkx(nx.empty_graph(7)), ["links"]),
        (pairs_of_another_period(), ["period"]),
        (pairs_in_secret(), ["changes"]),
        (pairs_of_step_0(), ["period", "changes"]),
        (staying(), ["changes"]),
        (unbalanced(), ["links"]),
        (weights_in_turn(), ["links", "period", "changes"]),
        (drawn(), ["repeats", "period"]),
        (careless(), EVERY),
        *((pairs_of_one_number(number=one), []) for one in (9, 13, 24)),
        *((one, []) for one in (slow_switch(), divided(), complete())),
        (pairs_of_one_number(number=65), EVERY),
        (pairs_for_half_the_workers(whole=True), EVERY[1:4]),
        (pairs_for_half_the_workers(whole=False), EVERY[:4]),
        *((one, ["links", "facts"]) for one in NO_GROUPS),
        *((one, ["facts"]) for one in (divided_in_secret(), ring_of_all_pairs(), all_pairs_at_first())),
    ],
    ids=repr,
)
def test_found(topology, broken):
    found = [attempt("it", name, run, 60) for name, run in topology_checks(topology).items()]
    assert [one.check for one in found] == EVERY
    assert [one.check for one in found if one.fault] == broken, [one for one in found if one.fault]


def test_it_is_told_what_to_do():
    said = attempt("it", "links", topology_checks(careless())["links"], 60).fault
    assert "for 1 workers raises NetworkXError" in said
    assert "; raise TopologyError for a number that it cannot have" in said
    said = attempt("it", "changes", topology_checks(pairs_in_secret())["changes"], 60).fault
    assert said == "declares changes=False, but it is True, as in step 1 for 3 workers"
    said = attempt("it", "period", topology_checks(pairs_of_one_number(number=65))["period"], 60).fault
    assert said == "no number of workers from 2 to 64 can be had: a graph of 65 workers"
    said = attempt(
        "it", "period", topology_checks(pairs_for_half_the_workers(whole=False))["period"], 60
    ).fault
    assert said.endswith("with 1 workers returned 0.5; return a whole number of exchanges, 1 or more")


@pytest.mark.parametrize("number", [9, 13, 24])
def test_what_one_number_of_workers_can_have_is_tried_in_a_run(number):
    assert Trial(algorithm_around(pairs_of_one_number(number=number))).size == number


@frozen
class uneven_ring(Topology):
    """A directed ring in which rank 0 sends to all: push-sum's weights keep the mean, plain ones do not."""

    def graph(self, world_size, step=0):
        graph = nx.empty_graph(world_size, create_using=nx.DiGraph)
        graph.add_edges_from((rank, (rank + 1) % world_size) for rank in range(world_size) if world_size > 1)
        graph.add_edges_from((0, rank) for rank in range(1, world_size))
        return graph


def test_a_graph_for_push_sum_is_tried_with_it():
    (rule,) = algorithm_around(uneven_ring()).rules
    assert rule.exchange == push_sum(topology=uneven_ring())
    assert Trial(algorithm_around(uneven_ring())).size == 3
    (rule,) = algorithm_around(ring()).rules
    assert rule.exchange == gossip(topology=ring())


@frozen
class ring_of_thirds(Topology):
    """A ring whose weights are fractions, and whose links have attributes that equal nothing."""

    def graph(self, world_size, step=0):
        graph = nx.cycle_graph(world_size)
        nx.set_edge_attributes(graph, math.nan, "metres")
        nx.set_node_attributes(graph, {rank: np.zeros(2) for rank in graph}, "place")
        return graph

    def weights(self, world_size, step=0):
        near = {rank: ((rank - 1) % world_size, rank, (rank + 1) % world_size) for rank in range(world_size)}
        return {rank: dict.fromkeys(peers, Fraction(1, len({*peers}))) for rank, peers in near.items()}


def test_weights_may_be_fractions_and_attributes_anything():
    checks = topology_checks(ring_of_thirds())
    assert not any(attempt("it", name, check, 60).fault for name, check in checks.items())

    def mixed(group):
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(model.weight, float(3 ** group.rank()))
        settings = {"algorithm": "d_psgd", "topology": ring_of_thirds()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with attach(model, optimizer, settings, process_group=group) as engine:
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            engine.close(average=False)
        return model.weight.item()

    assert len(set(simulate(mixed, 3))) == 1


@pytest.mark.parametrize("one", NO_GROUPS, ids=repr)
def test_groups_that_do_not_hold_each_rank_once_are_refused_on_all_ranks(one):
    def attached(group):
        model = torch.nn.Linear(2, 2)
        settings = {"algorithm": "hierarchical_local_sgd", "topology": one}
        with pytest.raises(TopologyError) as refused:
            attach(model, torch.optim.SGD(model.parameters(), lr=0.1), settings, process_group=group)
        return str(refused.value)

    said = simulate(attached, 4)
    assert len(set(said)) == 1
    assert f"divides 4 workers into the groups {one.groups(4)}; let groups() put each rank from" in said[0]


@pytest.mark.parametrize("one", [pairs_in_secret(), weights_in_turn()], ids=repr)
def test_one_that_changes_in_secret_is_refused_by_a_run_too(one):
    with pytest.raises(TopologyError, match=r"declares changes = False, but with 4 workers its weights at"):
        one.check(4)
    ring().check(4)


def test_the_suite_has_them():
    assert {one.check for one in islice(suite.findings("ring", {}), 10)} >= {*EVERY}
