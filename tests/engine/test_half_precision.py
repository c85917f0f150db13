"""Means of float16 and bfloat16: what every rank can hold, their mean can hold, however many they are."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import relaxcomm
from tests.engine.harness import in_process, on_gloo, values

LARGE = 30_000.0  # four of them are more than float16 holds
DIRECTED = relaxcomm.from_networkx(nx.DiGraph([(1, 0), (2, 0), (3, 0), (0, 1), (1, 2), (2, 3)]))
GROUPS = {"hierarchical": {"sizes": [3, 1]}}


class Scales(nn.Module):
    """Two buckets of parameters; the gradient of each is the same number everywhere."""

    def __init__(self, value: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.full((6,), value, dtype=dtype))
        self.second = nn.Parameter(torch.full((7,), value, dtype=dtype))
        self.register_buffer("seen", torch.full((3,), value, dtype=dtype))

    def forward(self, gradient: float) -> torch.Tensor:
        return (self.first * gradient).sum() + (self.second * gradient).sum()


def rules(payload: str, exchange, **more):
    return {"rules": [{"payload": payload, "exchange": exchange, **more}]}


def gradients_of(world, config, dtype: torch.dtype):
    """`.grad` after three backwards that give LARGE on all ranks."""
    model = Scales(0.0, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    found = []
    with world.attach(model, optimizer, {"bucket_bytes": 16, **config}) as engine:
        for _ in range(3):
            optimizer.zero_grad()
            model(LARGE).backward()
            optimizer.step()
            found += [float(x) for p in model.parameters() for x in p.grad]
        engine.close(average=False)
    return found


OF_GRADIENTS = {
    "all_reduce": rules("gradients", "all_reduce"),
    "all_gather": rules("gradients", "all_gather"),
    "scatter_gather": rules("gradients", "scatter_gather"),
    "group_all_reduce": {
        "rules": [
            {"payload": "gradients", "exchange": "group_all_reduce"},
            {
                "trigger": {"every": {"steps": 9}},
                "payload": "parameters",
                "exchange": "hierarchical_all_reduce",
            },
        ]
    },
    "hierarchical_all_reduce": rules("gradients", "hierarchical_all_reduce"),
    "shared_entries": rules("gradients", "all_reduce", compressor={"random_k": {"density": 1.0}}),
    "cast_float16": rules("gradients", "all_reduce", compressor={"cast": {"dtype": "float16"}}),
    "late": rules("gradients", "all_reduce", delay=1),
}


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_large_gradients_have_a_mean(name):
    dtype = torch.float32 if name == "cast_float16" else torch.float16
    config = {"algorithm": OF_GRADIENTS[name]}
    if name in ("group_all_reduce", "hierarchical_all_reduce"):
        config["topology"] = GROUPS
    first = 13 if name == "late" else 0  # none has come in the first step
    for found in in_process(gradients_of, 4, config, dtype):
        assert found[first:] == [LARGE] * (39 - first)


def trained(world, config, steps: int, dtype: torch.dtype = torch.float16):
    """Parameters and buffer at the end of a training that moves nothing."""
    model = Scales(LARGE, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with world.attach(model, optimizer, {"bucket_bytes": 16, **config}) as engine:
        for _ in range(steps):
            optimizer.zero_grad()
            model(1.0).backward()
            optimizer.step()
        with engine.averaged():
            between = [float(x) for x in values(model)]
    return [*between, *(float(x) for x in values(model)), *(float(x) for x in model.seen)]


OF_PARAMETERS = {
    "bsp": {"algorithm": "bsp"},  # its averaged() and close() alone
    "local_sgd": {"algorithm": {"name": "local_sgd", "steps": 2}},
    "late": {"algorithm": {"name": "local_sgd", "steps": 2, "delay": 1}},
    "async_model_average": {"algorithm": "async_model_average"},
    "ssp": {"algorithm": "ssp"},
    "ad_psgd": {"algorithm": "ad_psgd"},
    "d_psgd": {"algorithm": "d_psgd", "topology": "complete"},
    "one_peer": {"algorithm": "one_peer_exponential"},
    "choco": {"algorithm": "choco_sgd", "topology": "ring"},
    "dcd": {"algorithm": "dcd_psgd", "topology": "ring"},
    "hierarchical": {"algorithm": {"name": "hierarchical_local_sgd", "steps": 2}, "topology": GROUPS},
    "push_sum": {"algorithm": "sgp", "topology": DIRECTED},
    "scatter_gather": {"algorithm": rules("parameters", "scatter_gather", trigger={"every": {"steps": 2}})},
}


@pytest.mark.parametrize("name", OF_PARAMETERS)
def test_large_parameters_and_buffers_have_a_mean(name):
    for found in in_process(trained, 4, OF_PARAMETERS[name], 5):
        np.testing.assert_allclose(found, [LARGE] * 29, rtol=2e-3)


class Many(nn.Module):
    """Numbers that are the same everywhere, one third of which no short type can hold."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        numbers = torch.randn(3, 17, generator=torch.Generator().manual_seed(4)).to(dtype)
        self.first, self.second = nn.Parameter(numbers[0].clone()), nn.Parameter(numbers[1].clone())
        self.register_buffer("seen", numbers[2].clone())


def moved_by(world, config, dtype: torch.dtype):
    """How far averages of equal parameters, buffers and moments move any of them."""
    model = Many(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with world.attach(model, optimizer, {"bucket_bytes": 40, **config}) as engine:
        for _ in range(6):
            optimizer.zero_grad()
            ((model.first + model.second) * 0.7).sum().backward()
            optimizer.step()
        momentum = optimizer.state[model.first]["momentum_buffer"].clone()
        with engine.averaged():
            pass
        engine.switch(OF_GRADIENTS["hierarchical_all_reduce"] if "topology" in config else "bsp")
        distance = (optimizer.state[model.first]["momentum_buffer"] - momentum).abs().max().item()
    after = model.state_dict()
    return [distance, *((after[name] - value).abs().max().item() for name, value in before.items())]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 3, 7, 12])
@pytest.mark.parametrize(
    "config",
    [
        {"algorithm": {"name": "local_sgd", "steps": 2}},
        {"algorithm": {"name": "local_sgd", "steps": 2, "delay": 1}},
        {"algorithm": {"name": "local_sgd", "steps": 50}, "drift_guard": {"every_steps": 2}},
    ],
    ids=["local_sgd", "late", "averaged"],
)
def test_means_of_equal_values_are_these_values(dtype, size, config):
    for moved in in_process(moved_by, size, config, dtype):
        assert moved == [0.0] * 4


@pytest.mark.parametrize("sizes", [[2, 2, 2], [1, 5], [3, 4, 5]], ids=str)
def test_means_of_equal_values_are_these_values_in_groups(sizes):
    config = {
        "algorithm": {"name": "hierarchical_local_sgd", "steps": 2},
        "topology": {"hierarchical": {"sizes": sizes}},
    }
    for moved in in_process(moved_by, sum(sizes), config, torch.bfloat16):
        assert moved == [0.0] * 4


@pytest.mark.ranks
def test_means_of_equal_values_on_gloo():
    for moved in on_gloo(moved_by, 3, {"algorithm": {"name": "local_sgd", "steps": 2}}, torch.bfloat16):
        assert moved == [0.0] * 4


def test_short_means_send_what_a_ring_sends():
    def sent(world):
        model = nn.Linear(30, 4, bias=False).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with world.attach(model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 1}}) as engine:
            before = engine.statistics["bytes_sent"]  # to begin alike
            model(torch.ones(2, 30, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
            found = engine.statistics["bytes_sent"] - before
            engine.close(average=False)
        return found

    assert in_process(sent, 3) == [2 * 2 / 3 * 2 * 120] * 3


@pytest.mark.parametrize(
    ("dtype", "compressor", "leaves_in"),
    [
        (torch.bfloat16, "identity", [4, 5]),
        (torch.bfloat16, {"error_feedback": {"random_k": {"density": 0.5}}}, [4, 5]),
        (torch.float32, {"error_feedback": {"cast": {"dtype": "float16"}}}, [4, 5]),
        (torch.float32, "identity", [4]),
        (torch.float32, {"error_feedback": {"random_k": {"density": 0.5}}}, [4]),
    ],
)
def test_the_second_operation_of_a_late_mean_of_halves_leaves_a_step_later(dtype, compressor, leaves_in):
    """Not with the first step that needs it: then half of the exchange would be waited for."""
    config = rules("deltas", "all_reduce", trigger={"every": {"steps": 4}}, compressor=compressor, delay=2)

    def leaving(world):
        model = nn.Linear(30, 4, bias=False).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sent = [0]
        with world.attach(model, optimizer, {"algorithm": config}) as engine:
            for _ in range(7):
                model(torch.ones(2, 30, dtype=dtype)).sum().backward()
                optimizer.step()
                sent.append(engine.statistics["bytes_sent"])
            engine.close(average=False)
        return [step for step in range(2, 8) if sent[step] > sent[step - 1]]

    assert in_process(leaving, 3) == [leaves_in] * 3


def ddp_and_ours(world, dtype: torch.dtype):
    """`.grad` under DDP and under bsp; the same on all ranks, since DDP sums in another order."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(40, 7).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    inputs = torch.randn(5, 40, generator=generator).to(dtype)
    wrapped = DistributedDataParallel(model)
    wrapped(inputs).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    del wrapped
    ours = nn.Linear(40, 7).to(dtype)
    ours.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.0)
    with world.attach(ours, optimizer, {"algorithm": "bsp", "bucket_bytes": 1 << 20}):
        ours(inputs).sum().backward()
        return [
            [float(x) for x in grad.view(-1)] for grad in [*expected, *(p.grad for p in ours.parameters())]
        ]


@pytest.mark.ranks
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_of_gradients_are_those_of_ddp_bit_for_bit(dtype):
    """On 3 ranks, where dividing first and last round apart."""
    for weight, bias, ours, our_bias in on_gloo(ddp_and_ours, 3, dtype):
        assert (ours, our_bias) == (weight, bias)


@pytest.mark.ranks
def test_large_means_on_gloo():
    for found in on_gloo(gradients_of, 4, {"algorithm": "bsp"}, torch.float16):
        assert found == [LARGE] * 39
    for found in on_gloo(trained, 4, OF_PARAMETERS["local_sgd"], 3):
        assert found == [LARGE] * 29
