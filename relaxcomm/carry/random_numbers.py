"""Generators of random numbers for another number of ranks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from relaxcomm.network.transport import Membership
from relaxcomm.system.random_states import raw


def carried_random(states: Sequence[Mapping[str, Any]], membership: Membership) -> dict[str, Any]:
    """The generators of a new rank: those that were equal on all ranks go on, others begin anew.

    What they begin with is made of what all old ranks would have drawn next and of the new rank, so that no
    rank draws what another one draws, or has drawn.

    Args:
        states: of all old ranks.
        membership: the new one.
    """
    return {
        name: state if len({raw(one[name]) for one in states}) == 1 else _begun(name, states, membership)
        for name, state in states[0].items()
    }


def _begun(name: str, states: Sequence[Mapping[str, Any]], membership: Membership) -> Any:
    """A generator begun anew, by what all old ranks had drawn and which new one this is."""
    drawn = hashlib.blake2b(repr(membership).encode(), digest_size=8)
    for one in states:
        drawn.update(raw(one[name]))
    seed = int.from_bytes(drawn.digest()) >> 1
    if name == "python":
        return random.Random(seed).getstate()
    if name == "numpy":
        kind, key, *rest = np.random.RandomState(seed % 2**32).get_state(legacy=True)
        return kind, np.asarray(key).tolist(), *rest
    if name == "torch":
        return torch.Generator().manual_seed(seed).get_state()
    made = torch.zeros_like(states[0][name])  # of a GPU: the seed, and behind it how much of it was drawn
    made[:8] = torch.tensor([seed]).view(torch.uint8)
    return made
