"""What the worker processes of ddp_overhead.py do: models, sides, and the three kinds of run."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import PeakMemory

SIDES = ("ddp", "relaxcomm", "ddp_again")
ORDERS = tuple(itertools.permutations(SIDES))  # six orders: every side is as often first, second, last
PARAMETER_TOLERANCE = 1e-4


class Transformer(nn.Module):
    """13 narrow encoder layers: 159 parameter tensors, 0.4 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=13, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.embedding(tokens)).mean(dim=1))
        return logits


class Tiny(nn.Module):
    """250 residual layers of width 8: 500 parameter tensors, 18 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(250)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return x


def mlp() -> nn.Module:
    """4 layers, 8.0 million parameters, 30.5 MiB of gradients: two buckets of the default size."""
    sizes = [1024, 2048, 2048, 832]
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(832, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (mlp, lambda: torch.randn(16, 1024)),
    "transformer": (Transformer, lambda: torch.randint(256, (4, 32))),
    "tiny": (Tiny, lambda: torch.randn(16, 8)),
}
"""Name: how the model is made, and one batch. Batches are small, so that compute hides little."""


@dataclass(frozen=True)
class Plan:
    """How long to measure; all counts are per launch of the worker processes."""

    rounds: int
    block_seconds: float
    warmup_steps: int = 10
    settle_steps: int = 2  # untimed, at the start of a block: caches hold the side that ran before
    memory_steps: int = 10
    profile_steps: int = 50


class Side:
    """One model in training, and how its gradients are averaged ("alone": not at all)."""

    def __init__(self, name: str, model_name: str, rank: int) -> None:
        make_model, make_batch = MODELS[model_name]
        torch.manual_seed(0)  # the same model on every rank and side, other data on every rank
        self.model = make_model()
        torch.manual_seed(1 + rank)
        self.inputs = make_batch()
        self.targets = torch.randint(8, (len(self.inputs),))
        self.forward: Callable[[Tensor], Tensor] = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.close: Callable[[], object] = lambda: None
        if name == "relaxcomm":
            import relaxcomm  # here, so that DDP's memory is measured without it

            engine = relaxcomm.attach(self.model, self.optimizer, {"algorithm": "bsp"})
            self.close = engine.close
        elif name != "alone":  # a group of its own, as relaxcomm's always is
            self.forward = DistributedDataParallel(
                self.model, process_group=dist.new_group(), gradient_as_bucket_view=True
            )

    def step(self) -> None:
        loss = nn.functional.cross_entropy(self.forward(self.inputs), self.targets)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def timed(self, steps: int) -> list[float]:
        """Seconds of each of `steps` steps."""
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        return times


def time_rank(rank: int, model_name: str, plan: Plan, launch: int) -> dict[str, Any]:
    """All sides alive in this process, run in turn; wall and CPU seconds a step, averaged over ranks."""
    building_order = SIDES[launch % 3 :] + SIDES[: launch % 3]  # where memory lies must favour nobody
    sides = {name: Side(name, model_name, rank) for name in building_order}
    warm = [seconds for side in sides.values() for seconds in side.timed(plan.warmup_steps)[3:]]
    steps = torch.tensor([min(max(round(plan.block_seconds / statistics.median(warm)), 3), 100)])
    dist.broadcast(steps, 0)
    times: dict[str, list[list[float]]] = {name: [] for name in SIDES}
    work: dict[str, list[list[float]]] = {name: [] for name in SIDES}
    for round_index in range(plan.rounds):
        for name in ORDERS[round_index % len(ORDERS)]:
            dist.barrier()
            sides[name].timed(plan.settle_steps)
            start = time.process_time()
            seconds = sides[name].timed(int(steps))
            work_a_step = (time.process_time() - start) / int(steps)
            block = torch.tensor([*seconds, work_a_step], dtype=torch.float64)
            dist.all_reduce(block)
            *seconds, work_a_step = (block / dist.get_world_size()).tolist()
            times[name].append([round(value, 7) for value in seconds])
            work[name].append([round(work_a_step, 7)])
    difference = max(
        float((a.detach() - b.detach()).abs().max())
        for a, b in zip(sides["ddp"].model.parameters(), sides["relaxcomm"].model.parameters(), strict=True)
    )
    for side in sides.values():
        side.close()
    if not difference <= PARAMETER_TOLERANCE:  # also true for NaN
        raise RuntimeError(f"parameters of relaxcomm and DDP differ by {difference}: not the same training")
    return {
        "launch": launch,
        "seconds": times,
        "cpu_seconds": work,
        "largest_parameter_difference": difference,
    }


def memory_rank(rank: int, model_name: str, name: str, plan: Plan) -> list[dict[str, int]]:
    """Peak memory of processes that hold this one side only, one entry a rank."""
    if name == "relaxcomm":
        from relaxcomm import attach  # noqa: F401  what it imports belongs to the baseline, as DDP's does
    for warm_name in ("tiny", "transformer"):  # torch's lazily loaded code is no side's memory
        Side("alone", warm_name, rank).timed(2)
    dist.all_reduce(torch.ones(1))
    peak = PeakMemory()
    side = Side(name, model_name, rank)
    side.timed(plan.memory_steps)
    readings: list[Any] = [None] * dist.get_world_size()
    mine = peak.read()
    side.close()
    dist.all_gather_object(readings, mine)
    return readings
