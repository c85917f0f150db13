"""Groups over NCCL, pretended on the CPU: what they bring, and the order in which all ranks make them."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import numpy as np
import pytest
import torch

from relaxcomm.network import communicators
from relaxcomm.network.communicators import Communicators
from relaxcomm.network.operations import Label, Neighbors
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.plugin import Membership
from tests.engine.harness import World, on_gloo, train
from tests.network import pretended_nccl
from tests.network.pretended_nccl import Connected, Group, pretended
from tests.network.test_operations import exchange, on_gloo as over_gloo
from tests.ranks import launch_script, run_ranks

pytestmark = pytest.mark.ranks


def over_nccl(rank):
    with pretended(Connected):
        transport = pretended_nccl.transport(20)
        try:
            return exchange(transport)
        finally:
            transport.close()


def test_operations_are_gloos():
    assert run_ranks(over_nccl, 3) == run_ranks(over_gloo, 3)


def alone(rank):
    """Ranks 0 and 1 are neighbours, rank 2 has none; what was done to the groups, and what came."""
    with pretended(Connected):
        transport = pretended_nccl.transport(20)
        came = []
        for step in range(2):
            other, message = 1 - rank, torch.tensor([10.0 * step + rank])
            swap = Neighbors({other: message}, {other: torch.empty(1)}) if rank < 2 else Neighbors({}, {})
            came.append(transport.issue(swap, Label(step, "gossip")).wait())
        transport.meet("the end")
        transport.close()
        return [{peer: one.item() for peer, one in got.items()} for got in came], pretended_nccl.calls


def test_a_rank_without_neighbours_connects_like_the_others_and_then_sends_nothing():
    (zero, first), (one, second), (two, third) = run_ranks(alone, 3)
    assert (zero, one, two) == ([{1: 1.0}, {1: 11.0}], [{0: 0.0}, {0: 10.0}], [{}, {}])
    assert first == second == third == ["make neighbors", "connect neighbors cuda:0", "shutdown neighbors"]


def several(rank):
    with pretended(Connected):
        transport = pretended_nccl.transport(20)
        exchange(transport)
        transport.meet("the end")
        transport.close()
        return pretended_nccl.calls


def test_groups_are_made_and_ended_in_one_order():
    made = ["make operations", "connect operations cuda:0", "make neighbors", "connect neighbors cuda:0"]
    assert run_ranks(several, 3) == [[*made, "shutdown neighbors", "shutdown operations"]] * 3


def train_over_nccl(world: World, algorithm, steps: int):
    with pretended(Connected):
        there = World(world.rank, world.size, pretended_nccl.transport(60))
        return train(there, {"algorithm": algorithm}, steps)


@pytest.mark.parametrize("algorithm", ["bsp", "d_psgd", {"name": "diloco", "steps": 3}, "topk_sgd"])
def test_training_over_them_is_training_over_gloo(algorithm):
    found = on_gloo(train_over_nccl, 3, algorithm, 8)
    expected = on_gloo(train, 3, {"algorithm": algorithm}, 8)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


class Hanging(Group):
    """Its shutdown never ends, as where a peer never comes to its own."""

    def shutdown(self):
        super().shutdown()
        self.aborted.wait()


class Deaf(Group):
    """Its abort waits until all others are aborted, too."""

    both = threading.Barrier(2, timeout=20)

    def abort(self):
        super().abort()
        self.both.wait()


def made(*purposes: str) -> Communicators:
    limit = timedelta(seconds=20)
    rendezvous = Rendezvous(None, "here", Membership(0, 1), (0,), limit, limit)
    groups = Communicators(rendezvous, pretended_nccl.DEVICE)
    for purpose in purposes:
        groups.get(purpose, lambda work: work.wait(limit))
    return groups


def test_a_shutdown_that_never_ends_is_an_abort_of_all():
    with pretended(Hanging):
        made("operations", "neighbors").destroy(timedelta(seconds=0.3))
        ends = pretended_nccl.calls[4:]
    assert ends[0] == "shutdown neighbors"
    assert sorted(ends[1:]) == ["abort neighbors", "abort operations"]  # and no other shutdown


def test_all_are_aborted_together_and_once():
    with pretended(Deaf):
        groups = made("operations", "neighbors")
        groups.abort()
        groups.abort()
        groups.destroy(timedelta(seconds=20))
        assert sorted(pretended_nccl.calls[4:]) == ["abort neighbors", "abort operations"]
    assert Deaf.both.n_waiting == 0


LEFT_OPEN = """
import sys
sys.path.insert(0, ".")
import torch
from relaxcomm.network.default_group import make_default_group
from relaxcomm.network.operations import AllReduce, Label
from tests.network import pretended_nccl

class Telling(pretended_nccl.Connected):
    def shutdown(self):
        super().shutdown()
        print("shut down", self.purpose, flush=True)

make_default_group(60)
with pretended_nccl.pretended(Telling):
    transport = pretended_nccl.transport(60)
    transport.issue(AllReduce(torch.ones(2)), Label(0, "0")).wait()
"""


def test_what_nobody_has_closed_is_shut_down_when_the_process_ends():
    for one in launch_script(LEFT_OPEN, 2):
        assert one.returncode == 0, one.stderr
        said = [line for line in one.stdout.splitlines() if not line.startswith("[Gloo]")]  # by torch 2.8
        assert said == ["shut down operations"]


def test_torch_is_told_to_leave_failures_to_us_for_our_groups_alone(monkeypatch):
    for before in (None, "1"):
        monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
        if before is not None:
            monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", before)
        with communicators._failures_left_to_us():
            assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
        assert os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == before
