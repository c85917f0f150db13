"""Whether a primitive leaves alone the random numbers that the user's program draws."""

from __future__ import annotations

import random

import numpy as np
import torch

from relaxcomm.checks.finding import expect

GlobalStates = dict[str, bytes | str]


def global_states() -> GlobalStates:
    """The states of the generators that a whole program shares."""
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "NumPy": repr(np.random.get_state()),
        "random": repr(random.getstate()),
    }


def left_alone(before: GlobalStates) -> None:
    """They are as they were: dropout and the order of data draw from them, too."""
    here = global_states()
    changed = [name for name, state in before.items() if here[name] != state]
    expect(
        not changed,
        f"seeds the global generator of {' and of '.join(changed)}, or draws from it: dropout and the order "
        "of data would follow; draw from cx.generator(seed, device), or from a torch.Generator of its own",
    )
