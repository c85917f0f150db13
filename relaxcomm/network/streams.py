"""What the network asks of a GPU's streams: how far they are, and copies beside them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Streams:
    """The streams of a GPU, with one of our own for copies.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side: torch.cuda.Stream | None = None

    def mark(self) -> torch.cuda.Event:
        """An event in the current stream, which has `query` and `elapsed_time` and holds up nobody."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
        event.record(torch.cuda.current_stream(self._device))
        return event

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Callable[[], bool]]:
        """A copy on the host of what the current stream makes, and a look whether it is there."""
        if self._side is None:
            self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch's own
        copy = self.host_memory(tensor)
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            copy.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._side)  # else its memory could be another tensor's before it is copied
        event = self._side.record_event()
        return copy, lambda: bool(event.query())

    def host_memory(self, like: Tensor) -> Tensor:
        """Memory on the host from which a copy to the device holds up nobody."""
        return pinned(like)


def pinned(like: Tensor) -> Tensor:
    """Memory on the host from which a copy to a GPU holds up nobody."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
