"""What training loops do between two optimizer steps, written once for the engine and the reference.

`backward(model, step, rank, no_sync)` runs the forward and backward passes of one step; the
reference runs the same on plain models, one a worker, and averages by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.models import Case, make_toy, regression

NoSync = Callable[[], AbstractContextManager[Any]]
DATA = Case(make_toy, regression(6, 4, torch.float64), nn.functional.mse_loss)


def optimizer_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The plain update."""
    optimizer.step()


def clipped_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Clip to a norm that always bites."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    assert norm > 0.05
    optimizer.step()


@dataclass(frozen=True)
class Situation:
    """A model and what one step does with it."""

    backward: Callable[[nn.Module, int, int, NoSync], None]
    make: Callable[[], nn.Module] = make_toy
    update: Callable[[nn.Module, torch.optim.Optimizer], None] = optimizer_step


def loss(model: Callable[..., Tensor], step: int, rank: int, **options: Any) -> Tensor:
    """The mean square error on this rank's batch of this step."""
    inputs, targets = DATA.data(step, rank)
    return DATA.loss(model(inputs, **options), targets)


def plain(model, step, rank, no_sync):
    loss(model, step, rank).backward()


def accumulate(model, step, rank, no_sync):
    for part in (1, 2):
        with no_sync():
            (loss(model, 100 * part + step, rank) / 3).backward()
    (loss(model, step, rank) / 3).backward()


def accumulate_uneven_micro_batches(model, step, rank, no_sync):
    for part in range(rank + step % 2):  # ranks accumulate different numbers of local passes
        with no_sync():
            loss(model, 100 * part + step, rank).backward()
    loss(model, step, rank).backward()


def two_backwards(model, step, rank, no_sync):
    loss(model, step, rank).backward()
    loss(model, 50 + step, rank).backward()


def same_graph_twice(model, step, rank, no_sync):
    value = loss(model, step, rank)
    value.backward(retain_graph=True)
    value.backward()


def forward_twice(model, step, rank, no_sync):
    (loss(model, step, rank) + loss(model, 50 + step, rank).square()).backward()


def evaluate_between(model, step, rank, no_sync):
    with torch.no_grad():
        loss(model, 70, rank)
    model.eval()
    loss(model, 71, rank)
    value = loss(model.train(), step, rank)
    with torch.no_grad():
        loss(model, 72, rank)
    value.backward()
    with torch.no_grad():
        loss(model, 73, rank)


def submodules_only(model, step, rank, no_sync):
    loss(lambda inputs: model[2:](model[1](model[0](inputs))), step, rank).backward()


def first_submodule_only(model, step, rank, no_sync):
    model[0](DATA.data(step, rank)[0]).square().mean().backward()


def root_and_submodules_alternate(model, step, rank, no_sync):
    (plain if step % 2 else submodules_only)(model, step, rank, no_sync)


def gradient_penalty(model, step, rank, no_sync):
    inputs, targets = DATA.data(step, rank)
    outputs = model(inputs.requires_grad_())
    (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    (DATA.loss(outputs, targets) + slope.square().mean()).backward()


def probe_parameters(model, step, rank, no_sync):
    value = loss(model, step, rank)
    norms = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
    (value + 0.1 * sum(norm.square().sum() for norm in norms)).backward()


def two_probes_and_a_local_one(model, step, rank, no_sync):
    torch.autograd.grad(loss(model, 90, rank), list(model.parameters()))
    with no_sync():
        loss(model, 91, rank).backward()
    torch.autograd.grad(loss(model, 92, rank), model[0].weight)
    loss(model, step, rank).backward()


class Shared(nn.Module):
    """One layer used three times, and one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 7), nn.Linear(7, 7), nn.Linear(7, 4)
        self.tied = nn.Linear(7, 7, bias=False)
        self.tied.weight = self.middle.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.middle(torch.tanh(self.first(x))))
        return self.last(torch.tanh(self.middle(self.tied(self.middle(x)))))


class Checkpointed(nn.Module):
    """Blocks whose activations are recomputed in backward; `times` > 1 shares one block."""

    def __init__(self, reentrant: bool, times: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 7), nn.Linear(7, 4)
        self.block = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh())
        self.other = nn.Sequential(nn.Linear(7, 7), nn.Tanh())
        self.reentrant, self.times = reentrant, times
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(self.times):
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.last(checkpoint(self.other, x, use_reentrant=self.reentrant))


class Branches(nn.Module):
    """Parts of which a forward pass uses some."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(6, 5)])
        self.head = nn.Linear(5, 4)
        self.double()

    def forward(self, x: Tensor, used: tuple[int, ...] = (0, 1, 2)) -> Tensor:
        return self.head(torch.tanh(sum(self.parts[index](x) for index in used)))


def using(choose: Callable[[int, int], tuple[int, ...]]) -> Callable[[nn.Module, int, int, NoSync], None]:
    """A step that uses the parts `choose(step, rank)` of Branches."""

    def backward(model, step, rank, no_sync):
        loss(model, step, rank, used=choose(step, rank)).backward()

    return backward


class Outputs(nn.Module):
    """A model whose outputs hide in a container, an object or an attribute."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.head, self.extra = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(5, 4)
        self.kind, self.hidden = kind, torch.zeros(())
        self.double()

    def forward(self, x: Tensor) -> Any:
        x = torch.tanh(self.body(x))
        values = {"unused": self.extra(x), "nested": [(self.head(x), None), "text"]}
        if self.kind == "object":
            return SimpleNamespace(**values)
        if self.kind == "attribute":
            self.hidden = values["nested"][0][0]
            return torch.zeros(1)
        return values


def hidden_output(model, step, rank, no_sync):
    inputs, targets = DATA.data(step, rank)
    returned = model(inputs)
    if model.kind == "attribute":
        output = model.hidden
    else:
        output = (returned.nested if model.kind == "object" else returned["nested"])[0][0]
    DATA.loss(output, targets).backward()


SITUATIONS = {
    "plain": Situation(plain),
    "accumulation": Situation(accumulate),
    "uneven_accumulation": Situation(accumulate_uneven_micro_batches),
    "clipping": Situation(plain, update=clipped_step),
    "clipped_accumulation": Situation(accumulate, update=clipped_step),
    "two_backwards": Situation(two_backwards),
    "same_graph_twice": Situation(same_graph_twice),
    "forward_twice": Situation(forward_twice),
    "evaluation_between": Situation(evaluate_between),
    "submodules_only": Situation(submodules_only),
    "first_submodule_only": Situation(first_submodule_only),
    "root_and_submodules_alternate": Situation(root_and_submodules_alternate),
    "gradient_penalty": Situation(gradient_penalty),
    "probed_parameters": Situation(probe_parameters),
    "probes_and_local_passes": Situation(two_probes_and_a_local_one),
    "shared_parameter": Situation(plain, Shared),
    "checkpoint_reentrant": Situation(plain, lambda: Checkpointed(True, 1)),
    "checkpoint_reentrant_shared": Situation(plain, lambda: Checkpointed(True, 3)),
    "checkpoint": Situation(plain, lambda: Checkpointed(False, 1)),
    "checkpoint_shared": Situation(plain, lambda: Checkpointed(False, 3)),
    "checkpoint_accumulation": Situation(accumulate, lambda: Checkpointed(True, 2)),
    "unused_everywhere": Situation(using(lambda step, rank: (0, 2)), Branches),
    "unused_on_one_rank": Situation(using(lambda step, rank: (0, 2) if rank == 1 else (0, 1, 2)), Branches),
    "unused_in_turn": Situation(using(lambda step, rank: (step % 3,)), Branches),
    "unused_in_turn_by_rank": Situation(using(lambda step, rank: ((step + rank) % 3,)), Branches),
    "output_in_containers": Situation(hidden_output, lambda: Outputs("containers")),
    "output_in_an_object": Situation(hidden_output, lambda: Outputs("object")),
    "output_in_an_attribute": Situation(hidden_output, lambda: Outputs("attribute")),
}
