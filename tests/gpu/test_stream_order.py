"""No two streams, nor a stream and the host, meet in the same memory without a wait: on a pretended GPU."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import relaxcomm
from tests.golden.cases import CASES, TOPOLOGIES, WITH_ADAM, WITHOUT_MOMENTUM
from tests.gpu.places import Place, costly, run

pytestmark = pytest.mark.ranks
RANKS, STEPS = 3, 12
NAMES = [name for name in CASES if not name.startswith(("fedavg", "adaptive_local_sgd"))]


class Model(nn.Sequential):
    """Two buckets; a buffer; one rank leaves a layer out in some steps."""

    def __init__(self, rank: int) -> None:
        super().__init__(*(nn.Linear(8, 8) for _ in range(4)))
        self.register_buffer("mean", torch.zeros(8))
        self.rank, self.calls = rank, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for index, layer in enumerate(self):
            if not (index == 2 and self.rank == 0 and self.calls % 3 == 0):
                x = layer(x)
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return x.square().mean()


def races(place: Place, name: str, elastic: bool = False) -> list[str]:
    """Those of this rank in a few steps, with most of what a training loop may do."""
    warnings.simplefilter("ignore")
    torch.manual_seed(place.rank)
    model = Model(place.rank).to(place.device)
    momentum = 0.0 if name in WITHOUT_MOMENTUM else 0.9
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    if name in WITH_ADAM:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = {
        "algorithm": CASES[name],
        "bucket_bytes": 600,
        "topology": TOPOLOGIES.get(name, "complete"),
        "membership": {"elastic": elastic},
    }

    def backward(factor: float = 1.0) -> None:
        x = torch.randn(4, 8).pin_memory().to(place.device, non_blocking=True)
        (factor * model(x)).backward()

    with relaxcomm.attach(model, optimizer, config) as engine:
        for step in range(STEPS):
            if step % 2:
                with engine.no_sync():
                    backward(0.5)
            backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, (1 / torch.stack(torch._foreach_norm(gradients)).norm()).clamp(max=1))
            optimizer.step()
            optimizer.zero_grad()
            if step == 4:
                with engine.averaged(), torch.no_grad():
                    loss = model(torch.ones(4, 8, device=place.device))
                engine.observe_evaluation(loss=loss)
            if step == 5:
                model[0].requires_grad_(False)
            if step == 6:
                engine.load_state_dict(engine.state_dict())
            if step == 8:
                engine.switch(CASES[name] if name in TOPOLOGIES else "bsp")
    return place.pretended.races


@pytest.mark.parametrize("name", NAMES)
def test_no_race(name):
    for found in run(races, RANKS, name, where="streams"):
        assert not found, "\n".join(found)
