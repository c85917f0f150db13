"""Averaging in pairs: against a reference in virtual time; nobody waits; the mean stays; what is refused."""

from __future__ import annotations

import random
import time

import networkx as nx
import numpy as np
import pytest
import torch

import relaxcomm.config
from relaxcomm import CompositionError, Link, Rule, TopologyError, from_networkx, plugin, primitives, topology
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import pairwise
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from tests import references
from tests.engine.harness import (
    World,
    assert_histories_agree,
    assert_resumes,
    in_process,
    on_gloo,
    simulated_workers,
    values,
)
from tests.models import CASES, take_step, trainable

STEPS = 30
GRAPHS = {
    "complete": (topology.complete(), 5, {1: [0, 2, 4], 3: [0, 2, 4]}),
    "ring": (topology.ring(), 4, {1: [0, 2], 3: [0, 2]}),
    "star": (topology.star(), 4, {1: [0], 2: [0], 3: [0]}),
    "path": (from_networkx(nx.path_graph(3)), 3, {1: [0, 2]}),
    "two": (topology.complete(), 2, {1: [0]}),
    "one": (topology.complete(), 1, {}),
}


def reference(workers, steps, peers, late):
    """Active ranks (those in `peers`) take a mean in `late` steps after they asked, passive ones the next.

    A request arrives on the half of its way, after the passive ranks' exchange of that step; of those that
    arrive together each rank takes the next rank's first.
    """
    history = []
    copies = workers.parameters  # of the passive ranks
    taken = copies.copy()
    out = {}  # rank: (due, result, snapshot)
    rounds = [0] * len(copies)
    asked = []  # (when it arrives, in which turn, who asks, whom)

    def arrive(now):
        asked.sort()
        while asked and asked[0][0] <= now:
            *_, rank, peer = asked.pop(0)
            due, _, sent = out[rank]
            copies[peer] = (sent + copies[peer]) / 2
            out[rank] = due, copies[peer].copy(), sent

    def land(now):
        x = workers.parameters
        for rank, (due, result, snapshot) in list(out.items()):
            if due <= now:
                x[rank] += result - snapshot
                del out[rank]
        workers.parameters = x

    for step in range(steps):
        gradients = workers.gradients(step)
        land(step)
        workers.update(gradients)
        x = workers.parameters
        for rank in (rank for rank in range(len(x)) if rank not in out):
            if rank in peers:
                peer = random.Random(f"0/{rank}/{rounds[rank]}").choice(peers[rank])
                asked.append((step + late // 2, (rank - peer) % len(x), rank, peer))
                out[rank] = step + late, None, x[rank]
            else:
                copies[rank] = copies[rank] + x[rank] - taken[rank]
                taken[rank] = copies[rank].copy()
                out[rank] = step + 1, copies[rank].copy(), x[rank]
            rounds[rank] += 1
        arrive(step)
        history.append(workers.parameters)
    arrive(steps + late)
    land(steps + late)
    x = workers.parameters
    for rank in set(range(len(x))) - set(peers):
        x[rank] += copies[rank] - taken[rank]
    workers.parameters = x
    return references.finish(workers, history)


def timed(world, config, steps, seconds, optimizer="momentum", average=None):
    """Train with steps of `seconds`; the parameters after every step and after close."""
    task = CASES["toy"]
    model, optim = trainable("toy", optimizer, seed=world.rank)
    history = []
    engine = world.attach(model, optim, config)
    for step in range(steps):
        world.group.sleep(seconds[world.rank % len(seconds)])
        take_step(task.local_loss(model, step, world.rank), optim)
        history.append(values(model))
    ended = world.group.time()
    engine.close(average=average)
    return [*history, values(model)], ended


@pytest.mark.every_other("name", "late")
@pytest.mark.parametrize("late", [1, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_ad_psgd_equals_its_reference(name, late):
    """There and back takes `late` - 1/2 steps."""
    one, size, peers = GRAPHS[name]
    config = {"algorithm": "ad_psgd", "topology": one}

    def rank(group):
        return timed(World(group.rank(), size, group), config, STEPS, [1.0])[0]

    found = relaxcomm.simulate(rank, size, link=Link(latency_seconds=(late - 0.5) / 2))
    assert_histories_agree(found, reference(simulated_workers(size), STEPS, peers, late))


def test_nobody_waits_for_a_slow_worker():
    config = {"algorithm": "ad_psgd", "topology": "ring"}
    found = in_process(timed, 4, config, 20, [5.0, 1.0, 1.0, 1.0])
    assert [ended for _, ended in found] == [100.0, 20.0, 20.0, 20.0]


def mean_kept(world, config, steps):
    """The loss does nothing, so only the exchange moves replicas that start apart."""
    task = CASES["toy"]
    model, optimizer = trainable("toy", "plain")
    engine = world.attach(model, optimizer, config)
    for parameter in model.parameters():
        parameter.data.add_(world.rank)
    before = values(model)
    for step in range(steps):
        world.group.sleep((1.0, 1.3, 2.9)[world.rank % 3])
        take_step(0.0 * task.local_loss(model, step, world.rank), optimizer)
    engine.close(average=False)
    return before, values(model)


@pytest.mark.every_other("name", "compressor")
@pytest.mark.parametrize("compressor", ["identity", {"cast": {"dtype": "float16"}}])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_mean_stays_and_all_come_near_it(name, compressor):
    """Also where the messages lose digits, and also what has not been taken over when all end."""
    one, size, _ = GRAPHS[name]
    rule = {
        "payload": "parameters",
        "compressor": compressor,
        "exchange": "pairwise",
        "delay": "unbounded",
    }
    config = {"algorithm": {"rules": [rule]}, "topology": one}
    before, after = (np.stack(rows) for rows in zip(*in_process(mean_kept, size, config, 40), strict=True))
    np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0), rtol=1e-12, atol=1e-12)
    assert np.abs(after - after.mean(axis=0)).max() <= 0.1 * np.abs(before - before.mean(axis=0)).max()


def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_been():
    assert_resumes({"algorithm": "ad_psgd"})


def uneven(world, steps):
    model, optimizer = trainable("mlp", "momentum")
    with world.attach(model, optimizer, {"algorithm": "ad_psgd"}) as engine:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(float(world.rank))
        for group in optimizer.param_groups:
            group["lr"] = group["weight_decay"] = 0.0
        before, sent = values(model), engine.statistics["bytes_sent"]
        for step in range(steps[world.rank]):
            time.sleep(0.002 * world.rank)
            take_step(CASES["mlp"].local_loss(model, step, world.rank), optimizer)
        engine.state_dict()
        engine.close(average=False)
    return before, values(model), engine.statistics["bytes_sent"] - sent


@pytest.mark.ranks
def test_on_gloo_ranks_of_different_speed_and_length():
    found = on_gloo(uneven, 3, (20, 50, 35))
    before, after = (np.stack([one[which] for one in found]) for which in (0, 1))
    np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0), rtol=1e-5, atol=1e-5)
    assert np.ptp(after, axis=0).max() < np.ptp(before, axis=0).max()
    first, active, last = (sent for _, _, sent in found)
    assert first + last == active > 0, "answers are as long as questions"


@pytest.mark.parametrize(
    ("one", "size"),
    [("ring", 5), (from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 0)])), 3), ("exponential", 4)],
)
def test_graphs_without_two_sides_are_refused(one, size):
    with pytest.raises(TopologyError, match=r"is not bipartite.*grid, star or hypercube"):
        in_process(mean_kept, size, {"algorithm": "ad_psgd", "topology": one}, 1)


def test_graphs_that_change_and_other_payloads_are_refused():
    with pytest.raises(CompositionError, match="changes from step to step"):
        relaxcomm.config.load({"algorithm": "ad_psgd", "topology": "one_peer_exponential"})
    with pytest.raises(CompositionError, match="payload parameters"):
        Rule(payload=primitives.gradients(), exchange=pairwise())


def test_of_what_is_not_finite_the_passive_copy_keeps_nothing():
    """An entry too large for float16, or that the passive rank itself has lost, is answered and forgotten."""
    start = torch.linspace(-1, 1, 7)
    bucket = Bucket(0, [Item("tensor", start.clone())])
    coder = primitives.cast(dtype="float16")
    cx = plugin.Context(step=0, start=0, membership=Membership(0, 3), learning_rate=lambda bucket: 0.1)
    partner = pairwise().serve(cx, bucket, coder, primitives.average()).service
    large, lost = start.clone(), start.clone()
    large[3], lost[5] = 1e6, float("nan")
    for client, request, place in ((1, large.half(), 3), (0, lost, 5)):
        ((_, reply),) = partner.answer(client, request.view(torch.uint8))
        assert torch.nonzero(~reply.view(torch.float32).isfinite()).flatten().tolist() == [place]
        assert torch.equal(partner.export()["values"], start)
        assert torch.equal(partner.export()["taken"], start)
    ((_, reply),) = partner.answer(1, (start + 1).half().view(torch.uint8))
    torch.testing.assert_close(reply.view(torch.float32), torch.full((7,), 0.5), rtol=0, atol=1e-3)
    torch.testing.assert_close(partner.rest(), torch.full((7,), 0.5), rtol=0, atol=1e-3)
