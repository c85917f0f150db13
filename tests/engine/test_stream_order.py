"""No two streams, nor a stream and the host, meet in the same memory without a wait: on a pretended GPU."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import relaxcomm
from tests.golden.cases import CASES, TOPOLOGIES, WITH_ADAM, WITHOUT_MOMENTUM
from tests.gpu.places import Place, run
from tests.mutants import mutated

pytestmark = pytest.mark.ranks
RANKS, STEPS = 3, 10
NAMES = [name for name in CASES if not name.startswith(("fedavg", "adaptive_local_sgd"))]
CHEAP = ("bsp", "local_sgd late", "d_psgd", "ssp", "rules", "gaussiank_sgd")
GLOO = {"backend": "gloo"}
ELASTIC = {"membership": {"elastic": True}}


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


def races(place: Place, name: str, streams: str = "", options: Any = (), mutant: Any = None) -> list[str]:
    """Those of this rank in a few steps, with most of what a training loop may do.

    Args:
        place: where.
        name: of the algorithm.
        streams: "own" for a loop on a stream of its own, "forward" for a forward alone on one.
        options: of the configuration.
        mutant: what `mutated` takes.
    """
    warnings.simplefilter("ignore")
    assert place.pretended is not None
    with nullcontext() if mutant is None else mutated(*mutant):
        train(place, name, streams, dict(options))
    return place.pretended.races


def train(place: Place, name: str, streams: str, options: dict[str, Any]) -> None:
    torch.manual_seed(place.rank)
    model = Model(place.rank).to(place.device)
    momentum = 0.0 if name in WITHOUT_MOMENTUM else 0.9
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    if name in WITH_ADAM:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    topology = TOPOLOGIES.get(name, "complete")
    config = {"algorithm": CASES[name], "bucket_bytes": 600, "topology": topology, **options}
    default, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(default)

    def backward(factor: float = 1.0) -> None:
        x = torch.randn(4, 8).pin_memory().to(place.device, non_blocking=True)
        current = torch.cuda.current_stream()
        forward = side if streams == "forward" else current
        forward.wait_stream(current)
        x.record_stream(forward)
        with torch.cuda.stream(forward):
            loss = factor * model(x)
        current.wait_stream(forward)
        loss.backward()

    loop = side if streams == "own" else default
    with torch.cuda.stream(loop), relaxcomm.attach(model, optimizer, config) as engine:
        for step in range(STEPS):
            if step % 2:
                with engine.no_sync():
                    backward(0.5)
            backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            norm = torch.stack(torch._foreach_norm(gradients)).norm()  # torch's own clipping waits here
            torch._foreach_mul_(gradients, (1 / norm).clamp(max=1))
            optimizer.step()
            optimizer.zero_grad()
            if step == 3:
                with engine.averaged(), torch.no_grad():
                    loss = model(torch.ones(4, 8, device=place.device))
                engine.observe_evaluation(loss=loss)
            if step == 4:
                model[0].requires_grad_(False)
            if step == 5:
                engine.load_state_dict(engine.state_dict())
            if step == 7:
                engine.switch("bsp" if topology == "complete" else CASES[name])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in CHEAP else pytest.mark.slow) for n in NAMES]
)
def test_no_race(name):
    for found in run(races, RANKS, name, where="streams"):
        assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEAP)
@pytest.mark.parametrize(("streams", "options"), [("own", {}), ("forward", {}), ("", GLOO), ("", ELASTIC)])
def test_none_elsewhere(name, streams, options):
    for found in run(races, RANKS, name, streams, options, where="streams"):
        assert not found, "\n".join(found)


PENDING = "relaxcomm.network.pending_works:StreamPending.wait"
NEIGHBORS = "relaxcomm.network.process_groups:Groups._exchange_with_neighbors"
STAGED = "relaxcomm.network.streams:Streams.to_host"
USED = "relaxcomm.step.used_parameters:ask"
LATE = "relaxcomm.step.late_gradients:LateGradients.send"


@pytest.mark.parametrize(
    ("name", "options", "mutant", "race"),
    [
        ("bsp", {}, (PENDING, "work.wait()", "pass"), "NCCL's allreduce"),
        ("ssp", {}, (STAGED, "bool(event.query())", "True"), "on the host reads"),
        ("rules", {}, (USED, "one.used_here()", "(one.buffer.flags != 0)"), "NCCL's allreduce"),
        ("delayed_sgd", {}, (LATE, "message.clone()", "message"), "NCCL's allreduce"),
        (
            "d_psgd",
            GLOO,
            (NEIGHBORS, "tensor.cpu() for", "tensor.to('cpu', non_blocking=True) for"),
            "Gloo's send",
        ),
    ],
    ids=[
        "no wait for NCCL",
        "too early on the host",
        "flags on their way",
        "a buffer on its way",
        "no wait for a copy",
    ],
)
def test_a_wait_left_out_is_a_race(name, options, mutant, race):
    for found in run(races, RANKS, name, "", options, mutant, where="streams"):
        assert any(race in one for one in found)
