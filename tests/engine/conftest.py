"""Sizes from which tensors are worked on in other ways."""

from __future__ import annotations

import pytest

from relaxcomm.kernels import late_moves
from relaxcomm.primitives.compressors import count_sketch, threshold_search
from relaxcomm.primitives.exchanges import compressed_gossip
from relaxcomm.replica import gradient_buffer
from relaxcomm.tensors import segments

_SIZES = {
    gradient_buffer: {"CACHED_BYTES": 64, "_LARGE_BYTES": 32, "_SPAN_BYTES": 128},
    late_moves: {"_LARGE": 4},
    segments: {"_CACHED": 32},
    threshold_search: {"_CHUNK": 32, "_SORTED": 16},
    count_sketch: {"_CHUNK": 32},
    compressed_gossip: {"_CHUNK": 16},
}


@pytest.fixture(autouse=True)
def small_tensors_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, so that what is done with a real model's tensors is done with these; not over Gloo."""
    for module, sizes in _SIZES.items():
        for name, size in sizes.items():
            monkeypatch.setattr(module, name, size)
