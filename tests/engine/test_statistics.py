"""Counts held against numbers computed by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.engine.harness import World
from tests.models import take_step

PARAMETERS = 4 * 30 * 32  # four weights of 30 x 32 entries
KEYS = ("steps", "synchronisations", "lssr", "bytes_sent", "bytes_received", "bytes_uncompressed")


def make(dtype: torch.dtype = torch.float32) -> nn.Module:
    layers = [nn.Linear(32, 30, bias=False), nn.Linear(30, 32, bias=False)]
    return nn.Sequential(*layers, nn.Linear(32, 30, bias=False), nn.Linear(30, 32, bias=False)).to(dtype)


def run(world: World, algorithm, steps: int, bucket_bytes: int):
    """The statistics after every step, the first row after attach."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # the loss has no lower bound
    rows = []
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": bucket_bytes}) as engine:
        rows.append({key: engine.statistics[key] for key in KEYS})
        for _ in range(steps):
            take_step(model(torch.ones(2, 32)).sum(), optimizer)
            rows.append({key: engine.statistics[key] for key in KEYS})
    return rows


def ring(size: int, bytes_: int) -> float:
    """Bytes that a rank sends in a ring all-reduce."""
    return 2 * (size - 1) / size * bytes_


def grown(rows, key):
    return [late[key] - early[key] for early, late in pairwise(rows)]


@pytest.mark.parametrize(("size", "bucket_bytes"), [(2, 4000), (3, 4000), (3, 1 << 20)])
def test_bsp_sends_a_ring_all_reduce_of_the_gradients_every_step(network, size, bucket_bytes):
    flags = 4 * 4  # one entry a parameter tensor
    for rows in network(run, size, "bsp", 5, bucket_bytes):
        assert (rows[0]["steps"], rows[0]["synchronisations"]) == (0, 0)
        assert (rows[-1]["steps"], rows[-1]["synchronisations"], rows[-1]["lssr"]) == (5, 5, 0.0)
        for key in ("bytes_sent", "bytes_received"):
            for sent in grown(rows, key):
                assert ring(size, 4 * PARAMETERS) <= sent <= ring(size, 4 * PARAMETERS + flags) + 32 * size
        assert (
            grown(rows, "bytes_uncompressed")
            == [pytest.approx(ring(size, 4 * PARAMETERS), abs=32 * size)] * 5
        )


def test_local_sgd_sends_nothing_between_its_exchanges(network):
    for rows in network(run, 3, {"name": "local_sgd", "steps": 4}, 10, 4000):
        sent = grown(rows, "bytes_sent")
        assert [index for index, count in enumerate(sent) if count] == [3, 7]
        assert sent[3] == sent[7] == pytest.approx(ring(3, 4 * PARAMETERS), abs=96)
        assert (rows[-1]["steps"], rows[-1]["synchronisations"]) == (10, 2)
        assert rows[-1]["lssr"] == pytest.approx(0.8)
        assert rows[-1]["bytes_uncompressed"] == pytest.approx(10 * ring(3, 4 * PARAMETERS), abs=960)


def test_post_local_sgd_counts_both_phases(network):
    for rows in network(run, 3, {"name": "post_local_sgd", "steps": 4, "after_steps": 3}, 11, 4000):
        assert [row["synchronisations"] for row in rows] == [0, 1, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5]
        assert rows[-1]["lssr"] == pytest.approx(6 / 11)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cast_sends_half(network, dtype):
    rule = {"payload": "gradients", "exchange": "all_reduce", "compressor": {"cast": {"dtype": dtype}}}
    for rows in network(run, 3, {"rules": [rule]}, 4, 4000):
        for sent in grown(rows, "bytes_sent"):
            assert ring(3, 2 * PARAMETERS) <= sent <= ring(3, 2 * PARAMETERS + 16) + 96
        assert rows[-1]["bytes_uncompressed"] == pytest.approx(4 * ring(3, 4 * PARAMETERS), abs=400)


def test_two_rules_in_one_step_are_one_synchronised_step(network):
    gradients = {"payload": "gradients", "exchange": "all_reduce"}
    rules = [gradients, gradients | {"payload": "deltas", "trigger": {"every": {"steps": 2}}}]
    for rows in network(run, 3, {"rules": rules}, 4, 4000):
        assert (rows[-1]["steps"], rows[-1]["synchronisations"], rows[-1]["lssr"]) == (4, 4, 0.0)
        sent = grown(rows, "bytes_sent")
        assert sent[1] - sent[0] == pytest.approx(ring(3, 4 * PARAMETERS), abs=96)


def evaluated(world: World, algorithm, num_averages: int = 2):
    """The counts of training and of evaluation: before each average, and after the end."""
    keys = [f"{what}bytes_{way}" for what in ("", "evaluation_") for way in ("sent", "received")]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    engine = world.attach(model, optimizer, {"algorithm": algorithm})
    for _ in range(3):
        take_step(model(torch.ones(2, 32)).sum(), optimizer)
    rows = []
    for _ in range(num_averages):
        rows.append([engine.statistics[key] for key in keys])
        with engine.averaged():
            pass
    engine.close()
    rows.append([engine.statistics[key] for key in keys])
    return rows, engine.statistics["exposed_communication_seconds"], engine.snapshot()


def test_evaluations_are_counted_apart(network):
    one, three = (pytest.approx(n * ring(3, 4 * PARAMETERS), abs=300) for n in (1, 3))
    for (first, second, last), exposed, shown in network(evaluated, 3, {"name": "local_sgd", "steps": 100}):
        assert first[:2] == second[:2] == last[:2]
        assert first[2:] == [0, 0]
        assert second[2:] == [one, one]
        assert last[2:] == [three, three]
        assert exposed == 0
        assert sum(sent for sent, _ in shown.bytes_moved.values()) == last[0]
        assert shown.evaluation_bytes == tuple(last[2:])


def test_reading_a_servers_model_is_evaluation(network):
    ssp = {"name": "ssp", "staleness": 0}
    looked, unseen = (network(evaluated, 3, ssp, num_averages) for num_averages in (2, 0))
    for (rows, *_), (others, *_) in zip(looked, unseen, strict=True):
        assert rows[-1][:2] == others[-1][:2]
        assert 0 < others[-1][2] < rows[-1][2]
