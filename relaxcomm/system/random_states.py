"""The generators of random numbers that a whole program shares."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def export_random(device: torch.device) -> dict[str, Any]:
    """The states of those that training on a device may draw from."""
    kind, key, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, np.asarray(key).tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_random(saved: Mapping[str, Any], device: torch.device) -> None:
    """Draw on from where they were."""
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"].cpu())  # it may have been loaded to where the model is
    if device.type == "cuda" and saved["cuda"] is not None:
        torch.cuda.set_rng_state(saved["cuda"].cpu(), device)


def raw(state: Any) -> bytes:
    """One of the states, to be compared with another."""
    return state.cpu().numpy().tobytes() if isinstance(state, Tensor) else repr(state).encode()
