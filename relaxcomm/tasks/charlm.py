"""A character language model over Python's own source text, which every machine has."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.data import Dataset

from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Count, Rate
from relaxcomm.tasks.task import Task

_TRAIN_BYTES, _TEST_BYTES = 16_384, 2_048  # of a file, at most
_SYMBOLS = 128  # ASCII; other bytes are left out


def make(
    seed: int,
    *,
    learning_rate: Rate = 0.002,
    epochs: Count = 1,
    context: Annotated[int, Field(ge=1, le=1024)] = 64,
    width: Count = 128,
    layers: Count = 2,
    heads: Count = 4,
    samples: Count = 8192,
) -> Task:
    """Predict the next character of the standard library's source text with a small transformer.

    Every tenth source file is held out; the measure is bits per character on text from the middle of
    each of them (lower is better), so compare only numbers of the same version of Python. Pre-norm blocks,
    the output layer tied to the embedding, AdamW. The default holds 0.42 million parameters. A sample's
    label is the file that it begins in, so `data: {partition: by_label}` gives each worker its own files.

    Args:
        seed: of the model's initial values and of the excerpts that are read.
        learning_rate: of AdamW.
        epochs: passes over the excerpts.
        context: characters of an excerpt.
        width: of the model; a multiple of `heads`.
        layers: number of blocks.
        heads: of the attention.
        samples: number of excerpts in an epoch.

    Raises: ConfigError if the width is not a multiple of the heads, or the library's source is missing.
    """
    if width % heads:
        raise ConfigError(f"charlm: width {width} is not a multiple of heads {heads}")
    train, test = _texts(Path(sysconfig.get_path("stdlib")))
    held_out = torch.cat(test)
    held_out = held_out[: len(held_out) // (context + 1) * (context + 1)].view(-1, context + 1)
    torch.manual_seed(seed)
    model = Model(context, width, layers, heads)

    def bits_per_character(model: nn.Module) -> float:
        device = next(model.parameters()).device
        parts = [
            _cross_entropy(model, part.to(device)) * len(part) for part in torch.split(held_out.long(), 256)
        ]
        return float(sum(parts)) / len(held_out) / math.log(2)

    return Task(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01),
        train_data=Excerpts(train, context + 1, samples, seed),
        loss=_cross_entropy,
        evaluate=bits_per_character,
        epochs=epochs,
        batch_size=16,
        metric="bits per character",
        higher_is_better=False,
        evaluate_every_steps=50,
    )


class Excerpts(Dataset[Tensor]):
    """Excerpts of `length` characters from random places of the files, the same ones each time.

    `labels` holds the file that each one begins in; it may run on into the next.
    """

    def __init__(self, files: Sequence[Tensor], length: int, count: int, seed: int) -> None:
        self._text, self._length = torch.cat(list(files)), length
        self._starts = np.random.default_rng(seed).integers(0, len(self._text) - length, count)
        ends = np.cumsum([len(file) for file in files])
        self.labels = np.searchsorted(ends, self._starts, side="right")

    def __getitem__(self, index: int) -> Tensor:
        start = int(self._starts[index])
        return self._text[start : start + self._length].long()

    def __len__(self) -> int:
        return len(self._starts)


class Model(nn.Module):
    """A causal transformer whose output layer is its embedding."""

    def __init__(self, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(_SYMBOLS, width)
        self.places = nn.Parameter(torch.randn(context, width) * 0.02)
        nn.init.normal_(self.symbols.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.symbols(text) + self.places[: text.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.norm(hidden) @ self.symbols.weight.T
        return logits


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        parts = self.inputs(self.first(hidden)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.outputs(seen.transpose(1, 2).reshape(batch, length, width))
        fed: Tensor = hidden + self.down(nn.functional.gelu(self.up(self.second(hidden))))
        return fed


def _cross_entropy(model: nn.Module, excerpts: Tensor) -> Tensor:
    logits = model(excerpts[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), excerpts[:, 1:].flatten())


@lru_cache(maxsize=1)  # simulated workers read the same
def _texts(root: Path) -> tuple[list[Tensor], list[Tensor]]:
    """The training and the held-out files' text as ASCII codes."""
    files = sorted(path for path in root.glob("*.py") if path.is_file())
    train = [_middle(path, _TRAIN_BYTES) for index, path in enumerate(files) if index % 10]
    test = [_middle(path, _TEST_BYTES) for path in files[::10]]
    if sum(map(len, test)) < 4 * _TEST_BYTES:
        raise ConfigError(
            f"the task 'charlm' needs the source text of Python's standard library in {root}; install it "
            "(some distributions pack it apart)"
        )
    return train, test


def _middle(path: Path, limit: int) -> Tensor:
    """Text from the middle of a file, where it is neither licence nor imports."""
    text = path.read_bytes().translate(None, bytes(range(_SYMBOLS, 256)))
    start = max(0, (len(text) - limit) // 2)
    return torch.tensor(list(text[start : start + limit]), dtype=torch.uint8)
