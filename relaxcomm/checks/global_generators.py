"""Whether a primitive leaves alone the random numbers that the user's program draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from relaxcomm.checks.finding import expect
from relaxcomm.system.random_states import export_random, raw

_HOST = torch.device("cpu")
ALIKE = (
    "what all ranks have to do alike, such as to fire without a vote, may follow cx.step and numbers from "
    "torch.Generator().manual_seed(hash((seed, cx.step))), where seed is a whole number: the hash of text is "
    "another one in each process"
)


def global_states() -> dict[str, Any]:
    """The states of the generators that a whole program shares."""
    return export_random(_HOST)


def left_alone(before: Mapping[str, Any]) -> None:
    """They are as they were: dropout and the order of data draw from them, too."""
    changed = [name for name, state in global_states().items() if raw(state) != raw(before[name])]
    expect(
        not changed,
        f"seeds the global generator of {' and of '.join(changed)}, or draws from it: dropout and the order "
        f"of data would follow; draw from cx.generator(seed, device), other numbers on each rank; {ALIKE}",
    )
