"""Generators go on from a saved state, wherever it was loaded to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from relaxcomm.system.random_states import export_random, raw, restore_random
from relaxcomm.testing import PretendGpu


@pytest.mark.parametrize("loaded_to", ["cpu", "cuda"])
def test_a_state_goes_on_that_was_loaded_to_a_device(loaded_to, monkeypatch):
    device = torch.device("cuda", 0)
    restore, kept = torch.set_rng_state, torch.get_rng_state()
    with PretendGpu() as gpu:

        def set_rng_state(state: Tensor, *_: object) -> None:
            if gpu.holds(state):  # which torch refuses in these words
                raise TypeError("RNG state must be a torch.ByteTensor")
            restore(state)

        monkeypatch.setattr(torch, "set_rng_state", set_rng_state)
        monkeypatch.setattr(torch.cuda, "set_rng_state", set_rng_state)
        saved = export_random(device)
        drawn = torch.rand(3)
        there = {name: one.to(loaded_to) if isinstance(one, Tensor) else one for name, one in saved.items()}
        restore_random(there, device)
        assert torch.equal(torch.rand(3), drawn)
        assert all(raw(there[name]) == raw(saved[name]) for name in saved)
    restore(kept)
