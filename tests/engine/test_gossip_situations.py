"""Gossip where training is not plain: uneven data, checkpoints, buffers, numbers that overflow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import topology
from tests.engine.harness import World, in_process, saved_and_loaded, simulated_workers, values
from tests.models import CASES, take_step, trainable

BATCHES = (4, 7, 9)


def uneven(world: World, config, epochs: int):
    case, ends = CASES["toy"], []
    model, optimizer = trainable("toy", "plain", seed=world.rank)
    with world.attach(model, optimizer, config) as engine:
        for epoch in range(epochs):
            with engine.join():
                for step in range(BATCHES[world.rank]):
                    take_step(case.local_loss(model, 100 * epoch + step, world.rank), optimizer)
            ends.append(values(model))
    return [*ends, values(model)]


def uneven_reference(matrix, epochs: int):
    """A rank without data still mixes; at the end what is on its way lands, then all take the longest's."""
    workers, ends = simulated_workers(3, "plain"), []
    for epoch in range(epochs):
        for step in range(max(BATCHES)):
            active = np.array([[step < batches] for batches in BATCHES])
            before = workers.parameters
            gradients = workers.gradients(100 * epoch + step)
            workers.update(gradients)
            moved = np.where(active, workers.parameters - before, 0.0)
            workers.parameters = (matrix @ before if step else before) + moved
        workers.parameters = (matrix @ workers.parameters)[-1]
        ends.append(workers.parameters[0])
    return [*ends, ends[-1]]


@pytest.mark.parametrize("compressor", ["identity", {"cast": {"dtype": "float64"}}])
@pytest.mark.parametrize("exchange", ["gossip", "all_reduce"])
def test_ranks_with_uneven_data(exchange, compressor):
    one = topology.star() if exchange == "gossip" else topology.complete()
    rule = {"payload": "parameters", "exchange": exchange, "delay": 1, "compressor": compressor}
    expected = uneven_reference(one.matrix(3), 2)
    for ends in in_process(uneven, 3, {"algorithm": {"rules": [rule]}, "topology": one}, 2):
        np.testing.assert_allclose(ends, expected, rtol=1e-9, atol=1e-9)


def overflowing(group, algorithm):
    """Rank 0 holds a number that float16 does not have; ranks 2 and 3 of the ring never hear of it."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    world = World(group.rank(), 5, group)
    kept = None
    try:
        with world.attach(model, optimizer, {"algorithm": algorithm, "topology": "ring", "bucket_bytes": 16}):
            for step in range(6):
                if step == 2 and world.rank == 0:
                    with torch.no_grad():
                        model.weight[0, 0] = 1e6
                kept = values(model)
                take_step(model(torch.ones(1, 3)).sum(), optimizer)
    except relaxcomm.NonFiniteError as error:
        return str(error).split(":")[0], (values(model) == kept).all()
    return "trained on", True


@pytest.mark.parametrize("delay", [0, 1])
def test_what_overflows_in_the_compressor_is_an_error_on_every_rank_and_changes_none(delay):
    rule = {"payload": "parameters", "exchange": "gossip", "delay": delay}
    rule["compressor"] = {"cast": {"dtype": "float16"}}
    found = relaxcomm.simulate(lambda group: overflowing(group, {"rules": [rule]}), 5)
    assert found == [(f"step {2 + delay}", True)] * 5


@pytest.mark.parametrize("compressor", ["identity", {"cast": {"dtype": "float16"}}])
def test_a_run_that_was_saved_goes_on_with_the_next_graph(compressor):
    """Saved in the middle of the period, so that the graph's turn must be saved, too."""
    rule = {"payload": "parameters", "exchange": "gossip", "delay": 1, "compressor": compressor}
    config = {"algorithm": {"rules": [rule]}, "topology": "one_peer_exponential"}
    whole = in_process(saved_and_loaded, 5, config, 9, 9)
    for stop in (1, 4):
        np.testing.assert_array_equal(in_process(saved_and_loaded, 5, config, 9, stop), whole)


def buffers_and_parameters(world: World, rounds: int):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with world.attach(model, optimizer, {"algorithm": "one_peer_exponential"}) as engine:
        with torch.no_grad():
            model[1].running_mean.fill_(world.rank)
            model[0].bias.fill_(world.rank)
        for _ in range(rounds + 1):
            take_step(model(torch.ones(2, 3)).sum(), optimizer)
        found = model[1].running_mean.clone(), model[0].bias.detach().clone()
        engine.close(average=False)
    return found


def test_buffers_are_mixed_over_the_same_graphs_as_parameters():
    """Over one graph of the period alone, 8 ranks would never hear of each other."""
    for buffer, parameter in in_process(buffers_and_parameters, 8, 3):
        torch.testing.assert_close(buffer, torch.full((3,), 3.5))
        torch.testing.assert_close(parameter, torch.full((3,), 3.5))


def mean_in_the_middle(world: World, config):
    case = CASES["toy"]
    model, optimizer = trainable("toy", "momentum", seed=world.rank)
    seen = []
    with world.attach(model, optimizer, config) as engine:
        for step in range(5):
            take_step(case.local_loss(model, step, world.rank), optimizer)
            own = values(model)
            with engine.averaged():
                inside = values(model)
            seen.append((own, inside, values(model)))
    return seen


@pytest.mark.parametrize("size", [2, 5])
def test_averaged_holds_the_mean_while_messages_are_on_their_way(size):
    for step in zip(
        *in_process(mean_in_the_middle, size, {"algorithm": "d_psgd", "topology": "star"}), strict=True
    ):
        mean = np.mean([own for own, _, _ in step], axis=0)
        for own, inside, after in step:
            np.testing.assert_allclose(inside, mean, rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(after, own)
