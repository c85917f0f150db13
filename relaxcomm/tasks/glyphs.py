"""Characters drawn from the fonts that matplotlib ships, distorted at random."""

from __future__ import annotations

import string
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Count, Rate
from relaxcomm.tasks.task import Task

Pixels = NDArray[np.uint8]

CHARACTERS = string.digits + string.ascii_letters
SIDE = 24
# A whole family is held out: within one, a face is nearly another one, slanted.
_TRAIN_FONTS = ("DejaVuSans", "DejaVuSerif", "STIXGeneral")
_TEST_FONTS = ("cmb", "cmr", "cmss", "cmti", "cmtt")
_TRAIN_DRAWINGS, _TEST_DRAWINGS = 20, 8  # of each character of each font


def make(
    seed: int,
    *,
    learning_rate: Rate = 0.05,
    epochs: Count = 4,
    channels: Count = 16,
    hidden: Count = 128,
) -> Task:
    """Tell 62 characters (0-9, a-z, A-Z) apart with a small convolutional net with BatchNorm.

    Each character of the 16 faces of DejaVu and STIX is drawn 20 times, turned, stretched, moved and
    covered with noise. The measure is the accuracy on another family, Computer Modern (roman, bold,
    italic, sans serif, typewriter), 8 drawings each. Some characters look alike (O and 0, l and I), so
    100 % is out of reach. The default has 0.11 million parameters; `hidden: 4096` has 19 million, nearly
    all of them in the last layers, as in VGG.

    Args:
        seed: of the distortions and of the model's initial values.
        learning_rate: of SGD with momentum 0.9.
        epochs: passes over the training images.
        channels: of the first convolution; the others have 2 and 4 times as many.
        hidden: width of the layer behind the convolutions.

    Raises: ConfigError if matplotlib or Pillow is not installed.
    """
    train_x, train_y = _images(_TRAIN_FONTS, _TRAIN_DRAWINGS, (seed, 0))
    test_x, test_y = _images(_TEST_FONTS, _TEST_DRAWINGS, (seed, 1))
    torch.manual_seed(seed)
    model = _network(channels, hidden)

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)

    def accuracy(model: nn.Module) -> float:
        device = next(model.parameters()).device
        right = 0.0
        for images, labels in zip(torch.split(test_x, 256), torch.split(test_y, 256), strict=True):
            right += float((model(images.to(device)).argmax(dim=1) == labels.to(device)).sum())
        return right / len(test_y)

    return Task(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=5e-4),
        train_data=TensorDataset(train_x, train_y),
        loss=loss,
        evaluate=accuracy,
        epochs=epochs,
        evaluate_every_steps=40,
    )


def _network(channels: int, hidden: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 1
    for width in (channels, 2 * channels, 4 * channels):
        layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        before = width
    flat = before * (SIDE // 8) ** 2
    layers += [nn.Flatten(), nn.Linear(flat, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.3)]
    layers += [nn.Linear(hidden, hidden), nn.ReLU()] if hidden >= 1024 else []
    return nn.Sequential(*layers, nn.Linear(hidden, len(CHARACTERS)))


@lru_cache(maxsize=2)  # simulated workers draw the same
def _images(families: tuple[str, ...], drawings: int, seed: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Distorted characters in about [-1, 1], `[n, 1, side, side]`, and their classes."""
    draw = np.random.default_rng(seed)
    pictures, labels = [], []
    for glyphs in _glyphs(families).values():
        for label, glyph in enumerate(glyphs):
            for _ in range(drawings):
                pictures.append(_distorted(glyph, draw))
                labels.append(label)
    stacked = np.stack(pictures).astype(np.float32) / 127.5 - 1
    stacked += draw.normal(scale=0.25, size=stacked.shape).astype(np.float32)
    return torch.from_numpy(stacked)[:, None], torch.tensor(labels)


def _distorted(glyph: Any, draw: np.random.Generator) -> Pixels:
    from PIL import Image

    angle, shear = draw.uniform(-0.3, 0.3), draw.uniform(-0.25, 0.25)
    width, height = draw.uniform(0.8, 1.25, size=2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[width, shear], [0, height]]) * glyph.size[0] / SIDE
    centre = np.array(glyph.size) / 2
    offset = centre - matrix @ (np.full(2, SIDE / 2) + draw.uniform(-2, 2, size=2))
    numbers = (*matrix[0], offset[0], *matrix[1], offset[1])
    moved = glyph.transform((SIDE, SIDE), Image.Transform.AFFINE, numbers, Image.Resampling.BILINEAR)
    return np.asarray(moved)


@cache
def _glyphs(families: tuple[str, ...]) -> dict[str, list[Any]]:
    """Every character of the fonts whose names begin so, as a Pillow image, by the font's name."""
    try:
        import matplotlib
        from PIL import Image, ImageDraw, ImageFont
    except ModuleNotFoundError:
        raise ConfigError(
            "the task 'glyphs' needs matplotlib and Pillow; install them with: pip install 'relaxcomm[demo]'"
        ) from None
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    found: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("*.ttf")):
        if not path.stem.startswith(families) or "Display" in path.stem:  # those hold few characters
            continue
        font = ImageFont.truetype(str(path), 34)
        found[path.stem] = []
        for character in CHARACTERS:
            image = Image.new("L", (48, 48))
            ImageDraw.Draw(image).text((24, 24), character, fill=255, font=font, anchor="mm")
            found[path.stem].append(image)
    if not found:
        raise ConfigError(f"the task 'glyphs' needs the fonts that matplotlib ships; none are in {folder}")
    return found
