"""What each rank needs to go on, in a folder of a framework's checkpoint."""

from __future__ import annotations

from pathlib import Path

from relaxcomm import checkpoint
from relaxcomm.engine import Engine
from relaxcomm.errors import ConfigError

_FOLDER = "relaxcomm"


def save_to(engine: Engine, folder: Path, index: int = 0) -> None:
    """Save what each rank needs to go on beside a framework's checkpoint; every rank calls it.

    Args:
        engine: of the run.
        folder: of the framework's checkpoint, which all ranks see.
        index: of the model, where there are several.
    """
    checkpoint.save(engine, _inside(folder, index), keep=1)


def load_from(engine: Engine, folder: Path, index: int = 0) -> None:
    """Go on from what `save_to` has saved; every rank calls it.

    Raises: ConfigError, on every rank, if nothing is there; as `relaxcomm.checkpoint.load`.
    """
    if checkpoint.load(engine, _inside(folder, index)) is None:
        raise ConfigError(
            f"{_inside(folder, index)} holds no checkpoint, so {folder} was saved without relaxcomm; to "
            "begin anew from its weights, load these into the model before it is attached"
        )


def _inside(folder: Path, index: int) -> Path:
    return folder / (f"{_FOLDER}_{index}" if index else _FOLDER)
