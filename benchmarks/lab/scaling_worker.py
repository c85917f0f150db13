"""A host's process for `benchmarks.lab.scaling`: every line it is told is one exchange of all parameters."""

from __future__ import annotations

import gc
import json
import math
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import relaxcomm
from benchmarks.given_gradients import loss_of
from benchmarks.lab.entries import EIGHT_BITS, FEW
from benchmarks.lab.network import sent_bytes
from relaxcomm import Engine
from relaxcomm.config import Config
from relaxcomm.plugin import exchange_cost
from relaxcomm.primitives import complete
from relaxcomm.tensors.bucket_building import build_buckets
from relaxcomm.tensors.items import Item
from relaxcomm_algorithms.bsp import bsp

_WIDTH = 1000  # of a layer, or less in a small model
_BSP = bsp()

CONFIGS: dict[str, dict[str, Any]] = {
    "relaxcomm bsp": {"name": "bsp"},
    "relaxcomm local_sgd, 8 bits": {"name": "local_sgd", "steps": 1, "compressor": EIGHT_BITS},
    "relaxcomm local_sgd, sparse": {"name": "local_sgd", "steps": 1, "compressor": FEW},
}


class Blocks(nn.Module):
    """A stack of linear layers that are never computed.

    Args:
        numel: number of parameters, of which less than a row of a layer may be left out.
    """

    def __init__(self, numel: int) -> None:
        super().__init__()
        width = min(_WIDTH, math.isqrt(numel))
        heights = [width] * (numel // width**2) + [numel % width**2 // width]
        self.layers = nn.ModuleList(nn.Linear(width, height, bias=False) for height in heights if height)
        generator = torch.Generator().manual_seed(dist.get_rank())
        noise = torch.randn(width, width, generator=generator)
        # Views of one tensor: a gradient is copied when it becomes `.grad`, as if it had been computed.
        self.noise = [noise.view(-1)[: p.numel()].view_as(p) for p in self.parameters()]

    def forward(self) -> Tensor:
        return loss_of(self.noise, *self.parameters())


class Still(torch.optim.Optimizer):
    """Leaves the parameters as they are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {"lr": 0.0})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Nothing, between the hooks of what is attached."""


class Subject:
    """One way to exchange a number of parameters.

    Args:
        contender: its name.
        numel: number of parameters.
    """

    def __init__(self, contender: str, numel: int) -> None:
        self._model = None if contender == "all_reduce" else Blocks(numel)
        self._rules = _BSP.rules
        self._engine: Engine | None = None
        self._hands_gradients = contender in ("ddp", "relaxcomm bsp")
        if self._model is None:
            self._flat = torch.zeros(numel)
            return
        self._optimizer = Still(self._model)
        self._called: nn.Module = self._model
        if contender == "ddp":
            self._called = DistributedDataParallel(self._model)
        else:
            self._engine = relaxcomm.attach(self._model, self._optimizer, {"algorithm": CONFIGS[contender]})
            self._rules = self._engine.algorithm.rules

    def declared(self) -> dict[str, float]:
        """Bytes that a host sends for an exchange, and its operations, as the framework's facts have them."""
        whole = self._model is None
        items = [Item("flat", self._flat)] if whole else self._items()
        capacity = sys.maxsize if whole else Config(algorithm="bsp").bucket_bytes
        workers, sent, operations = dist.get_world_size(), 0.0, 0
        for bucket in build_buckets(items, bucket_bytes=capacity):
            for rule in self._rules:
                cost = exchange_cost(
                    rule.exchange, rule.compressor, bucket.layout, bucket.dtype.itemsize, workers, complete()
                )
                sent, operations = sent + cost.sent_bytes, operations + cost.operations
        return {"declared_bytes": sent, "operations": operations}

    def _items(self) -> list[Item]:
        assert self._model is not None
        return [Item(name, parameter.detach()) for name, parameter in self._model.named_parameters()]

    def prepare(self) -> None:
        """What comes before an exchange and is no part of it: parameters move, as a step would move them."""
        if self._model is None:
            self._flat.fill_(1.0)
        elif not self._hands_gradients:
            with torch.no_grad():
                torch._foreach_add_(list(self._model.parameters()), self._model.noise)
        else:
            self._model.zero_grad()

    def exchange(self) -> None:
        """Average all over the workers."""
        if self._model is None:
            dist.all_reduce(self._flat)
            return
        if self._hands_gradients:
            self._called().backward()
        self._optimizer.step()

    def close(self) -> None:
        """Free hooks and groups."""
        if self._engine is not None:
            self._engine.close(average=False)


def timed(subject: Subject) -> dict[str, float]:
    """One exchange that all hosts begin together: this host's seconds, bytes and processor time."""
    subject.prepare()
    dist.barrier()
    first_bytes, cpu, begin = sent_bytes(), time.process_time(), time.perf_counter()
    subject.exchange()
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    dist.barrier()  # what the link still holds goes out before it
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "bytes_sent": sent_bytes() - first_bytes}


def main() -> None:
    torch.set_num_threads(1)
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    opened: tuple[str, int] | None = None
    subject: Subject | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if (asked["contender"], asked["numel"]) != opened:
            if subject is not None:
                subject.close()
            subject = None
            gc.collect()  # before the next one takes as much memory
            opened = asked["contender"], asked["numel"]
            subject = Subject(*opened)
        assert subject is not None
        print(json.dumps({**timed(subject), **subject.declared()}), file=answers, flush=True)
    if subject is not None:
        subject.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
