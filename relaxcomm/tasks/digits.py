"""scikit-learn's handwritten digits: 1,797 real images that need no download."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import nn
from torch.utils.data import TensorDataset

from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Count, Fraction, Rate
from relaxcomm.tasks.task import Task


def make(
    seed: int,
    *,
    learning_rate: Rate = 0.05,
    epochs: Count = 25,
    hidden: Sequence[Count] = (512, 512, 256),
    dropout: Fraction = 0.2,
) -> Task:
    """Classify 8 x 8 images of the digits 0 to 9 with a multi-layer perceptron.

    A fifth of the images, the same share of each digit, is held out; the measure is the accuracy on it.
    Cross-entropy with label smoothing 0.1, SGD with momentum 0.9. The default layers hold 0.43 million
    parameters.

    Args:
        seed: of the split and of the model's initial values.
        learning_rate: of SGD.
        epochs: passes over the training images.
        hidden: widths of the hidden layers.
        dropout: probability of dropping an activation of a hidden layer.

    Raises: ConfigError if scikit-learn is not installed.
    """
    train_x, test_x, train_y, test_y = _images(seed)
    torch.manual_seed(seed)
    model = _perceptron(hidden, dropout)

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)

    def accuracy(model: nn.Module) -> float:
        device = next(model.parameters()).device
        guesses = model(test_x.to(device)).argmax(dim=1)
        return float((guesses == test_y.to(device)).float().mean())

    return Task(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9),
        train_data=TensorDataset(train_x, train_y),
        loss=loss,
        evaluate=accuracy,
        epochs=epochs,
        evaluate_every_steps=20,
    )


@lru_cache(maxsize=1)  # simulated workers read the same
def _images(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training and held-out images, scaled to [0, 1], and their labels."""
    try:
        # scikit-learn ships no types.
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
        from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise ConfigError(
            "the task 'digits' needs scikit-learn; install it with: pip install 'relaxcomm[demo]'"
        ) from None
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=0.2, stratify=labels, random_state=seed)
    train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in split)
    return train_x.float(), test_x.float(), train_y.long(), test_y.long()


def _perceptron(hidden: Sequence[int], dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = 64
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), nn.ReLU(), nn.Dropout(dropout)]
        width = next_width
    return nn.Sequential(*layers, nn.Linear(width, 10))
