"""Over NCCL nobody waits for ever: the others name a rank that fails, and go on without it where they may.

A rank that comes upon NaN is named on all.
"""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
import torch

import relaxcomm
from tests.engine.harness import World
from tests.engine.test_finite import OF_GRADIENTS, OF_PARAMETERS, told, trained
from tests.gpu.places import Place, costly, launch, run

pytestmark = pytest.mark.ranks
LOST, FAILS_IN = 1, 20


def model_of(place: Place):
    """A model, its optimizer and a batch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).to(place.device)
    return (
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.randn(16, 64, device=place.device),
    )


def failing(place: Place, how: str, limit: float):
    """What a rank says when another fails, and how many seconds later."""
    model, optimizer, x = model_of(place)
    begin, said, seconds = 0.0, "", 0.0
    try:
        with relaxcomm.attach(model, optimizer, {"algorithm": "bsp", "timeout_seconds": limit}):
            for step in range(2000):
                if step == FAILS_IN:
                    begin = time.monotonic()
                    if place.rank == LOST and how == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    if place.rank == LOST and how == "raise":
                        raise KeyError("mine")
                    if place.rank == LOST and how == "stall":
                        time.sleep(60)
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                loss.item()  # the host waits for its GPU here
    except relaxcomm.CommunicationError as error:
        said, seconds = str(error), time.monotonic() - begin
        time.sleep(2.0 * (place.rank == 0))  # which holds the store that tells the others
    return said, seconds


@pytest.mark.parametrize(
    ("how", "limit", "words"),
    [
        ("kill", 60, ["rank 1 has ended"]),
        costly("raise", 60, ["rank 1 failed: KeyError"]),
        costly("stall", 3, ["rank 1", "timeout_seconds"]),
    ],
)
def test_the_others_name_the_rank_that_fails(how, limit, words):
    done = launch(failing, 3, how, limit, never_end={LOST})
    for one in done:
        assert one.returncode == 0, one.stderr
        said, seconds = json.loads(one.stdout.splitlines()[-1])
        assert all(word in said for word in words), said
        assert seconds < 5 + (limit if how == "stall" else 0)


def going_on(place: Place, algorithm):
    """How many ranks are left, the steps taken, the parameters' sum, and the longest step in seconds."""
    model, optimizer, x = model_of(place)
    longest = 0.0
    with relaxcomm.attach(
        model, optimizer, {"algorithm": algorithm, "membership": {"elastic": True}}
    ) as engine:
        for step in range(60):
            if step == FAILS_IN and place.rank == LOST:
                os.kill(os.getpid(), signal.SIGKILL)
            begin = time.monotonic()
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            longest = max(longest, time.monotonic() - begin)
        ranks = engine.world.size
    return ranks, step + 1, sum(p.detach().double().sum() for p in model.parameters()).item(), longest


@pytest.mark.parametrize(
    "algorithm", [costly("bsp"), {"name": "diloco", "steps": 4}, costly("d_psgd"), costly("ssp")]
)
def test_the_others_go_on_without_a_rank_that_was_killed(algorithm):
    done = launch(going_on, 3, algorithm, never_end={LOST})
    found = [json.loads(one.stdout.splitlines()[-1]) for one in done if one.returncode == 0]
    assert [one[:2] for one in found] == [[2, 60]] * 2, [one.stderr for one in done]
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-6)
    assert all(seconds < 10 for _, _, _, seconds in found)


def spoilt(place: Place, name: str, where: str) -> str:
    """What this rank is told of NaN on rank 1."""
    algorithm, settings = (OF_GRADIENTS | OF_PARAMETERS)[name]
    return told(World(place.rank, place.size, device=place.device), trained(algorithm, where, **settings))


@pytest.mark.parametrize(
    ("name", "where", "words"),
    [
        ("bsp", "gradient", "the gradient of 2.bias on rank 1;"),
        ("local_sgd", "parameter", "parameter 2.bias on rank 1;"),
    ],
)
def test_nan_is_named_with_its_rank_on_all(name, where, words):
    found = run(spoilt, 3, name, where)
    assert found == found[:1] * 3
    assert words in found[0]
