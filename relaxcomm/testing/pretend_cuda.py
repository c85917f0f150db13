"""What of `torch.cuda` runs on a pretended GPU: kernels are done at once, and streams keep what was meant."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from relaxcomm.testing.stream_clocks import Clock, Clocks, join

WaitFor = Callable[[str], None]


class PretendCuda:
    """The streams of one device, and which is current in each thread.

    Args:
        wait: called where the host waits.
        clocks: of streams and threads.
    """

    def __init__(self, wait: WaitFor, clocks: Clocks) -> None:
        self.wait, self.clocks = wait, clocks
        self.default = PretendStream(self)
        self._chosen = threading.local()

    def current(self) -> PretendStream:
        """The stream of this thread."""
        chosen: PretendStream = getattr(self._chosen, "stream", self.default)
        return chosen

    def choose(self, stream: PretendStream) -> None:
        """From now on it is this thread's."""
        self._chosen.stream = stream

    @contextmanager
    def on(self, stream: PretendStream | None) -> Iterator[None]:
        """Have it as the current one."""
        before = self.current()
        self.choose(before if stream is None else stream)
        try:
            yield
        finally:
            self.choose(before)

    def synchronize(self) -> None:
        """The host waits for all streams."""
        self.wait("synchronize")
        join(self.clocks.host(), self.clocks.issued)


class PretendStream:
    """A stream whose work is done when it is issued; its clock tells what was meant to be done before."""

    def __init__(self, cuda: PretendCuda) -> None:
        self._cuda = cuda
        self.number = cuda.clocks.add_stream()
        self.clock: Clock = {}
        self._asked = PretendEvent(cuda)

    def wait_stream(self, other: PretendStream) -> None:
        """What it is given from now on comes after what the other was given until now."""
        join(self.clock, other.clock)

    def wait_event(self, event: PretendEvent) -> None:
        """What it is given from now on comes after the event."""
        event.wait(self)

    def record_event(self, event: PretendEvent | None = None) -> PretendEvent:
        """An event behind what it was given until now."""
        event = event or PretendEvent(self._cuda)
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all is done."""
        if self._asked.clock != self.clock:
            self._asked.record(self)
        return self._asked.query()

    def synchronize(self) -> None:
        """The host waits."""
        self._cuda.wait("Stream.synchronize")
        join(self._cuda.clocks.host(), self.clock)


class PretendEvent:
    """An event in a stream."""

    def __init__(self, cuda: PretendCuda) -> None:
        self._cuda, self._recorded = cuda, 0.0
        self.clock: Clock = {}
        self._was_asked = False

    def record(self, stream: PretendStream | None = None) -> None:
        """It stands behind what the stream was given until now."""
        self._recorded, self._was_asked = time.perf_counter(), False
        self.clock = dict((stream or self._cuda.current()).clock)

    def wait(self, stream: PretendStream | None = None) -> None:
        """What the stream is given from now on comes after it."""
        join((stream or self._cuda.current()).clock, self.clock)

    def query(self) -> bool:
        """Whether it has happened; then the host knows."""
        clocks = self._cuda.clocks
        host, asked, self._was_asked = clocks.host(), self._was_asked, True
        if not (clocks.is_eager or asked or all(host.get(n, 0) >= t for n, t in self.clock.items())):
            return False
        join(host, self.clock)
        return True

    def synchronize(self) -> None:
        """The host waits."""
        self._cuda.wait("Event.synchronize")
        join(self._cuda.clocks.host(), self.clock)

    def elapsed_time(self, later: PretendEvent) -> float:
        """Milliseconds between both; the host's, since kernels run at once."""
        return 1e3 * (later._recorded - self._recorded)


@contextmanager
def patched_cuda(cuda: PretendCuda) -> Iterator[None]:
    """Let `torch.cuda` have one device."""

    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # torch's stub has no __new__

    stands_in: dict[str, Callable[..., Any]] = {
        "Event": lambda *_, **__: PretendEvent(cuda),
        "Stream": lambda *_, **__: PretendStream(cuda),
        "current_stream": lambda *_: cuda.current(),
        "default_stream": lambda *_: cuda.default,
        "set_stream": cuda.choose,
        "stream": cuda.on,
        "device": lambda _: nullcontext(),
        "synchronize": lambda *_: cuda.synchronize(),
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
