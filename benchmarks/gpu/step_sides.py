"""A transformer in training, with DDP, with relaxcomm or with neither around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import relaxcomm
from relaxcomm.tasks.charlm import Model

ALGORITHMS: dict[str, Any] = {"bsp": "bsp", "local": {"name": "local_sgd", "steps": 10**9}}
_HEAD_WIDTH = 64


@dataclass(frozen=True)
class Shape:
    """Of a transformer, and of one rank's batch.

    Args:
        width: of the model.
        layers: its blocks.
        context: tokens of a row.
        batch: rows.
    """

    width: int
    layers: int
    context: int
    batch: int

    def model(self) -> nn.Module:
        """The same on every rank."""
        torch.manual_seed(0)
        return Model(self.context, self.width, self.layers, max(1, self.width // _HEAD_WIDTH))


class Side:
    """One model in training; what is on the GPU computes in bfloat16.

    Args:
        name: one of `ALGORITHMS`, or begins with "ddp" or "plain".
        shape: of the model and its batch.
        rank: whose data it is.
        device: of both.
        bucket_bytes: of relaxcomm's; DDP's hold 25 MiB or a little more.
    """

    def __init__(
        self, name: str, shape: Shape, rank: int, device: torch.device, bucket_bytes: int = 25 << 20
    ) -> None:
        self.model = shape.model().to(device)
        draw = torch.Generator().manual_seed(1 + rank)
        text = torch.randint(128, (shape.batch, shape.context + 1), generator=draw).to(device)
        self._inputs, self._targets = text[:, :-1].contiguous(), text[:, 1:].flatten()
        self._device, self._engine = device, None
        self._forward: Callable[[Tensor], Tensor] = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        if name in ALGORITHMS:
            config = {"algorithm": ALGORITHMS[name], "bucket_bytes": bucket_bytes}
            self._engine = relaxcomm.attach(self.model, self.optimizer, config)
        elif name.startswith("ddp"):  # a group of its own, as relaxcomm's always is
            backend = "nccl" if device.type == "cuda" else "gloo"
            self._forward = DistributedDataParallel(
                self.model, process_group=dist.new_group(backend=backend), gradient_as_bucket_view=True
            )

    def step(self) -> None:
        """Forward, backward, update."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            logits = self._forward(self._inputs).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, self._targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def timed(self, steps: int) -> float:
        """Seconds a step, the device's work included."""
        self._wait()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._wait()
        return (time.perf_counter() - begin) / steps

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def host_share(self, steps: int) -> float:
        """The part of so many steps that the engine's callbacks take on the host; 0 without one."""
        if self._engine is None:
            return 0.0
        before, begin = self._engine.statistics["callback_seconds"], time.perf_counter()
        self.timed(steps)
        after = self._engine.statistics["callback_seconds"]
        return float((after - before) / (time.perf_counter() - begin))

    def means(self) -> list[float]:
        """Of each parameter, by which two sides are compared."""
        return [float(parameter.detach().double().mean()) for parameter in self.model.parameters()]

    def close(self) -> None:
        """End the engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
