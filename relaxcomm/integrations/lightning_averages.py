"""The averages of weights that Lightning's callbacks keep, on each rank of its own replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from torch import Tensor, nn


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


def _mean(values: Sequence[Tensor]) -> Tensor:
    """Of numbers that have one; of others, such as counts, the first."""
    if not values[0].is_floating_point():
        return values[0]
    return torch.stack(list(values)).mean(0)
