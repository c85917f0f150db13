"""Small models with every awkward kind of parameter, and their data, for the engine's tests.

Batches are a function of (step, rank) alone, so that a reference can compute any rank's gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]
SEEDING = threading.Lock()  # in-process ranks are threads and share the global generator


@dataclass(frozen=True)
class Case:
    """A model, its data and its loss; `make` draws from torch's global generator."""

    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]

    def model(self, seed: int = 0) -> nn.Module:
        """A model whose initial parameters depend on `seed` only."""
        with SEEDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make()

    def data(self, step: int, rank: int) -> Batch:
        """The batch that `rank` sees at `step`."""
        return self.batch(torch.Generator().manual_seed(1000 * step + rank + 1))

    def local_loss(self, model: nn.Module, step: int, rank: int) -> Tensor:
        """Loss of `model` on the batch of `rank` at `step`, where the model lies."""
        device = next(model.parameters()).device
        inputs, targets = (one.to(device) for one in self.data(step, rank))
        return self.loss(model(inputs), targets)


def regression(inputs: int, outputs: int, dtype: torch.dtype, batch_size: int = 4) -> Callable[..., Batch]:
    """Normal inputs and targets."""

    def batch(generator: torch.Generator) -> Batch:
        x = torch.randn(batch_size, inputs, generator=generator, dtype=dtype)
        return x, torch.randn(batch_size, outputs, generator=generator, dtype=dtype)

    return batch


def make_toy() -> nn.Module:
    """A float64 MLP of 226 parameters (1808 bytes): rounding stays far below any change of meaning."""
    return nn.Sequential(nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 9), nn.Tanh(), nn.Linear(9, 4)).double()


def make_mlp() -> nn.Module:
    """A float32 MLP."""
    return nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 17), nn.Tanh(), nn.Linear(17, 4))


def make_convnet() -> nn.Module:
    """Convolutions with BatchNorm: floating-point and integer buffers."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, bias=False),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 16, 3),
    )


def image_batch(generator: torch.Generator) -> Batch:
    """Six 8x8 images of two channels and their classes."""
    images = torch.randn(6, 2, 8, 8, generator=generator)
    return images, torch.randint(3, (6,), generator=generator)


class Transformer(nn.Module):
    """Tied weights, a root-level parameter, a frozen part, an unused part and mixed dtypes.

    With `low_dtype` float32 two dtypes are left, and sums on 3 ranks differ by float32 rounding only.
    """

    def __init__(self, width: int = 8, tokens: int = 11, low_dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.embedding = nn.Embedding(tokens, width)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.double_part = nn.Linear(width, width).double()
        self.low_part = nn.Linear(width, width).to(low_dtype)
        self.unused = nn.Linear(width, 3)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1)
        x = self.encoder(x) + self.frozen(x)
        x = x + self.double_part(x.double()).float() + self.low_part(x.to(self.low_part.weight.dtype)).float()
        return self.head(x[:, 0])


def token_batch(generator: torch.Generator) -> Batch:
    """Four sequences of five tokens, and one token to predict for each."""
    return torch.randint(11, (4, 5), generator=generator), torch.randint(11, (4,), generator=generator)


CASES = {
    "toy": Case(make_toy, regression(6, 4, torch.float64), functional.mse_loss),
    "mlp": Case(make_mlp, regression(8, 4, torch.float32), functional.mse_loss),
    "convnet": Case(make_convnet, image_batch, functional.cross_entropy),
    "transformer": Case(Transformer, token_batch, functional.cross_entropy),
    "transformer_32_64": Case(
        partial(Transformer, low_dtype=torch.float32), token_batch, functional.cross_entropy
    ),
}


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizers of the tests: plain, with momentum, adaptive, and with two parameter groups."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name == "plain":
        return torch.optim.SGD(parameters, lr=0.1)
    if name == "momentum":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)
    if name == "adamw":  # a large eps, so that the rounding of a gradient near 0 does not become a full step
        return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.05, eps=1e-3)
    if name == "groups":
        groups = [{"params": parameters[:2], "lr": 0.02}, {"params": parameters[2:], "lr": 0.1}]
        return torch.optim.SGD(groups, momentum=0.5)
    raise KeyError(name)


def trainable(case: str, optimizer: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of `CASES`, and one of the optimizers for it."""
    model = CASES[case].model(seed)
    return model, make_optimizer(optimizer, model)


def take_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """What a training loop does with a loss."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
