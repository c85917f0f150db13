"""What of `torch.cuda` runs on a pretended GPU: streams and events of which all is done at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

WaitFor = Callable[[str], None]


class PretendStream:
    """A stream whose work is done when it is issued."""

    def __init__(self, wait: WaitFor) -> None:
        self._wait = wait

    def wait_stream(self, other: PretendStream) -> None:
        """Nothing is left to wait for."""

    def record_event(self) -> PretendEvent:
        """An event that has happened."""
        event = PretendEvent(self._wait)
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits."""
        self._wait("Stream.synchronize")


class PretendEvent:
    """An event that has happened when it is recorded."""

    def __init__(self, wait: WaitFor) -> None:
        self._wait, self._recorded = wait, 0.0

    def record(self, stream: PretendStream | None = None) -> None:
        """It happens now."""
        self._recorded = time.perf_counter()

    def wait(self, stream: PretendStream | None = None) -> None:
        """A stream has nothing to wait for."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """The host waits."""
        self._wait("Event.synchronize")

    def elapsed_time(self, later: PretendEvent) -> float:
        """Milliseconds between both; the host's, since kernels run at once."""
        return 1e3 * (later._recorded - self._recorded)


@contextmanager
def patched_cuda(wait: WaitFor) -> Iterator[None]:
    """Let `torch.cuda` have one device.

    Args:
        wait: called where the host waits.
    """
    current = PretendStream(wait)

    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # torch's stub has no __new__

    stands_in: dict[str, Callable[..., Any]] = {
        "Event": lambda *_, **__: PretendEvent(wait),
        "Stream": lambda *_, **__: PretendStream(wait),
        "current_stream": lambda *_: current,
        "default_stream": lambda *_: current,
        "stream": lambda _: nullcontext(),
        "device": lambda _: nullcontext(),
        "synchronize": lambda *_: wait("synchronize"),
        "get_device_properties": lambda *_: SimpleNamespace(name="pretended", uuid=f"process {os.getpid()}"),
        "set_device": lambda _: None,
        "current_device": lambda: 0,
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "_lazy_init": lambda: None,
    }
    with ExitStack() as stack:
        for name, value in stands_in.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.object(torch, "Generator", Generator))
        yield
