"""No two streams, nor a stream and the host, meet in the same memory without a wait: on a pretended GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import relaxcomm
from tests.golden.cases import CASES, TOPOLOGIES, WITH_ADAM, WITHOUT_MOMENTUM
from tests.gpu.places import Place, costly, run

pytestmark = pytest.mark.ranks
RANKS, STEPS = 3, 8
NAMES = [name for name in CASES if not name.startswith(("fedavg", "adaptive_local_sgd"))]


def races(place: Place, name: str) -> list[str]:
    """Those of this rank in a few steps."""
    torch.manual_seed(place.rank)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).to(place.device)
    momentum = 0.0 if name in WITHOUT_MOMENTUM else 0.9
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    if name in WITH_ADAM:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = {
        "algorithm": CASES[name],
        "bucket_bytes": 600,
        "topology": TOPOLOGIES.get(name, "complete"),
    }
    with relaxcomm.attach(model, optimizer, config) as engine:
        for step in range(STEPS):
            x = torch.randn(4, 8).pin_memory().to(place.device, non_blocking=True)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return place.pretended.races


@pytest.mark.parametrize("name", NAMES)
def test_no_race(name):
    for found in run(races, RANKS, name, where="streams"):
        assert not found, "\n".join(found)
