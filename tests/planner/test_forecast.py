"""What is forecast of algorithms whose rules name parameters, and of models that are not float32."""

from __future__ import annotations

from dataclasses import replace

import networkx
import pytest
import torch
from torch import nn

from relaxcomm import Algorithm, Link, Rule
from relaxcomm.planner.forecast import forecast
from relaxcomm.planner.links import GraphLinks, OwnLinks
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.planner.sites import SiteLinks
from relaxcomm.primitives import all_reduce, deltas, every, gradients
from relaxcomm.tensors.items import Item
from relaxcomm.topology import from_networkx
from relaxcomm_algorithms.d_psgd import d_psgd
from relaxcomm_algorithms.diloco import diloco

ON = Scenario(3, StepTimes(0.1), OwnLinks(Link(bytes_per_second=1e9)))


def items(dtype=torch.float32):
    """A trunk of three million entries, and a head of one."""
    with torch.device("meta"):
        layers = {"trunk": nn.Linear(3000, 1000, bias=False), "head": nn.Linear(1000, 1000, bias=False)}
    return [Item(name, one) for name, one in nn.ModuleDict(layers).to(dtype).named_parameters()]


def test_rules_that_name_parameters_are_counted_for_what_they_select():
    """The trunk's anchor, three entries of four, and a message of theirs; a gradient buffer of the head's."""
    trunk = Rule(trigger=every(steps=8), payload=deltas(), exchange=all_reduce(), select="trunk.*")
    head = Rule(payload=gradients(), exchange=all_reduce(), select="head.*")
    found = forecast(Algorithm((trunk, head)), items(), ON, utilisations=())
    assert found.memory_bytes == pytest.approx((3 * (4 + 4) + 1 * 4) / 4, rel=1e-4)


def test_half_precision_is_remembered_wide_and_sent_short():
    """DiLoCo's anchor and momentum are float32, a message is as the model."""
    assert forecast(diloco(steps=8), items(torch.bfloat16), ON, utilisations=()).memory_bytes == 4 + 4 + 2


def test_a_bandwidth_is_found_where_nothing_is_ever_waited_for():
    at_sites, path = SiteLinks(3, 2, Link(), Link()), GraphLinks(networkx.path_graph(3), Link())
    found = [forecast(diloco(steps=8), items(), replace(ON, links=one)) for one in (at_sites, path)]
    assert found[0].bandwidths == found[1].bandwidths == forecast(diloco(steps=8), items(), ON).bandwidths


def test_memory_is_that_of_the_rank_that_needs_most():
    """Beside its own message a rank has one of each neighbour: of a star's last rank all others are."""
    last = from_networkx(networkx.relabel_nodes(networkx.star_graph(3), {0: 3, 3: 0}))
    found = forecast(d_psgd(), items(), replace(ON, workers=4, topology=last), utilisations=())
    assert found.memory_bytes == 20
    said = "memory is what rank 3 needs, the most of all; rank 0 needs least, 48 MB"
    assert said in found.remarks
    assert "memory" not in "".join(forecast(d_psgd(), items(), ON, utilisations=()).remarks)
