"""The averages of weights that Lightning's callbacks keep, on each rank of its own replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from torch import Tensor, nn

from relaxcomm.errors import UsageError


class Averages:
    """What a rank saves of them: a checkpoint of Lightning's has rank 0's alone.

    Args:
        callbacks: of the Trainer.
    """

    def __init__(self, callbacks: Sequence[pl.Callback]) -> None:
        kept = [one for one in callbacks if isinstance(one, StochasticWeightAveraging | WeightAveraging)]
        self.names = [type(one).__name__ for one in kept]
        self._models: dict[str, nn.Module] = {
            one.state_key: one._average_model for one in kept if one._average_model is not None
        }

    def state_dict(self) -> dict[str, Any]:
        """This rank's, by callback."""
        return {key: dict(model.state_dict()) for key, model in self._models.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from them, where the callbacks are still there."""
        for key, model in self._models.items():
            if key in state_dict:
                model.load_state_dict(state_dict[key])

    def carry_state_dicts(self, state_dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What another number of ranks goes on from: their mean."""
        return {
            key: {name: _mean([one[key][name] for one in state_dicts]) for name in first}
            for key, first in state_dicts[0].items()
        }


class _Swap(pl.Callback):  # type: ignore[misc]  # it is Any where Lightning is missing
    """Right after a callback that swaps its average and the model while that is validated: whether it has.

    Args:
        owner: the callback.
    """

    def __init__(self, owner: WeightAveraging) -> None:
        self.owner = owner
        self.is_on = False

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """An earlier validation may have failed."""
        self.is_on = False

    def on_validation_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Lightning has swapped the averaged weights in."""
        self.is_on = True

    def on_validation_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Lightning has swapped the trained weights back."""
        self.is_on = False


def follow_swaps(callbacks: list[pl.Callback]) -> None:
    """Have `check_swapped_back` know what these callbacks swap.

    Args:
        callbacks: of the Trainer, to which others are added.
    """
    followed = [one.owner for one in callbacks if isinstance(one, _Swap)]
    for one in [one for one in callbacks if isinstance(one, WeightAveraging) and one not in followed]:
        callbacks.insert(callbacks.index(one) + 1, _Swap(one))


def check_swapped_back(callbacks: Sequence[pl.Callback]) -> None:
    """Refuse a checkpoint that would have an average of weights for the replica, and the replica for it.

    Raises: UsageError.
    """
    for one in callbacks:
        if isinstance(one, _Swap) and one.is_on:
            raise UsageError(
                f"{type(one.owner).__name__} has its average and the model swapped until the end of "
                "the validation, so that a checkpoint would take one for the other; save in "
                "on_validation_end, as ModelCheckpoint does, or the average alone by "
                "save_checkpoint(…, weights_only=True)"
            )


def _mean(values: Sequence[Tensor]) -> Tensor:
    """The mean of numbers that have one; of others, such as counts, the first."""
    if not values[0].is_floating_point():
        return values[0]
    return torch.stack(list(values)).mean(0)
