"""What ranks hand to each other as bytes is read where it lies."""

from __future__ import annotations

import tracemalloc

import torch

from relaxcomm.engine.membership.parcels import decoded, encoded


def test_a_state_is_read_without_a_copy_of_all_its_bytes():
    """Who joins holds the bytes and what they say, and not the bytes twice."""
    state = {f"{index}.weight": torch.randn(64, 256) for index in range(16)} | {"step": 3, "rate": 0.1}
    raw = encoded(state)
    tracemalloc.start()  # which sees bytes, and no tensors
    try:
        found = decoded(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < raw.numel() / 2
    assert found.keys() == state.keys()
    torch.testing.assert_close(found, state, rtol=0, atol=0)
