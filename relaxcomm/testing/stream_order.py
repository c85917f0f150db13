"""Whether waits order what streams and the host do with the same memory: happens-before, by vector clocks."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from relaxcomm.testing.places import place
from relaxcomm.testing.pretend_cuda import PretendCuda
from relaxcomm.testing.stream_clocks import Clock

_HOST = -1


class _Access(NamedTuple):
    """What a kernel did with bytes of a storage."""

    begin: int
    end: int
    writes: bool
    stream: int
    time: int
    what: str

    def happened_before(self, clock: Mapping[int, int]) -> bool:
        return self.time <= clock.get(self.stream, 0)

    def __str__(self) -> str:
        where = "the host" if self.stream == _HOST else f"stream {self.stream}"
        return f"{self.what} on {where} {'writes' if self.writes else 'reads'}"


@dataclass
class _Memory:
    """A storage, which the allocator gave to a stream; the host's belongs to none."""

    owner: int
    made: str
    alive: weakref.ref[torch.UntypedStorage]
    accesses: list[_Access] = field(default_factory=list)
    recorded: set[int] = field(default_factory=set)


class StreamOrder:
    """Finds races between the streams of a pretended GPU, and between them and the host.

    A race is an access to bytes that another stream writes, or a write to bytes that it reads, unless events
    or the host's waits have the one come after the other; so is memory that the allocator could give away
    while another stream still uses it. Bytes are those from a tensor's first entry to its last.

    Args:
        cuda: whose streams.
        races: is told of each kind once.
    """

    def __init__(self, cuda: PretendCuda, races: list[str]) -> None:
        self._cuda, self._races = cuda, races
        self._memories: dict[int, _Memory] = {}
        self._freed: deque[int] = deque()
        self._in_use: dict[int, list[tuple[_Access, str]]] = {}  # of memory that was given back, by its owner
        self._lock = threading.RLock()

    def allocated(self, tensor: Tensor) -> None:
        """The current stream was given memory, which may be what was given back to it."""
        stream = self._cuda.current()
        clock = self._knows(stream.clock)
        with self._lock:
            self._look_for_freed()
            for access, made in self._in_use.pop(stream.number, []):
                if not access.happened_before(clock):
                    self._report(f"memory made at {made} is given back and away while {access} it")
            self._memory(tensor, stream.number)

    def launched(self, what: str, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> None:
        """The current stream was given a kernel."""
        stream = self._cuda.current()
        what = f"{what} at {place()}"
        with self._lock:
            self._look_for_freed()
            self._cuda.clocks.issue(stream.number, stream.clock)
            at = stream.number, stream.clock[stream.number], what
            for tensors, are_written in ((reads, False), (writes, True)):
                for tensor in tensors:
                    self._accessed(tensor, stream.clock, are_written, *at)

    def host_accessed(self, what: str, reads: Iterable[Tensor], writes: Iterable[Tensor] = ()) -> None:
        """The host looked at its own memory, or wrote there."""
        with self._lock:
            self._look_for_freed()
            for tensors, are_written in ((reads, False), (writes, True)):
                for tensor in tensors:
                    if tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._memories:
                        at = f"{what} at {place()}"
                        self._accessed(tensor, self._cuda.clocks.host(), are_written, _HOST, 0, at)

    def recorded(self, tensor: Tensor, stream: int) -> None:
        """The allocator leaves this memory to a stream, too, until that has done what it was given."""
        with self._lock:
            self._memory(tensor, _HOST).recorded.add(stream)

    def _accessed(
        self, tensor: Tensor, clock: Mapping[int, int], writes: bool, stream: int, time: int, what: str
    ) -> None:
        if tensor.layout is not torch.strided or not tensor.numel():
            return
        memory, (begin, end) = self._memory(tensor, _HOST), _bytes_of(tensor)
        access = _Access(begin, end, writes, stream, time, what)
        kept = []
        for one in memory.accesses:
            is_apart = one.end <= begin or end <= one.begin
            if not is_apart and (writes or one.writes) and not one.happened_before(clock):
                self._report(f"{access} what {one}, and no wait orders them")
            # Whatever comes after this access comes after those, too.
            is_told = writes or (one.stream == stream and not one.writes)
            if not (is_told and begin <= one.begin and one.end <= end):
                kept.append(one)
        if stream != _HOST:  # what the host does is done before it issues anything more
            memory.accesses = [*kept, access]

    def _memory(self, tensor: Tensor, owner: int) -> _Memory:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._memories:
            # torch keeps a storage's object as long as its memory.
            alive = weakref.ref(storage, lambda _: self._freed.append(key))
            self._memories[key] = _Memory(owner, place(), alive)
        return self._memories[key]

    def _look_for_freed(self) -> None:
        while self._freed:
            memory = self._memories.pop(self._freed.popleft())
            others = [
                (one, memory.made)
                for one in memory.accesses
                if one.stream != memory.owner and one.stream not in memory.recorded
            ]
            if memory.owner != _HOST and others:  # the allocator of pinned memory knows who uses it
                self._in_use.setdefault(memory.owner, []).extend(others)

    def _knows(self, clock: Clock) -> Clock:
        host = self._cuda.clocks.host()
        return {one: max(clock.get(one, 0), host.get(one, 0)) for one in (*clock, *host)}

    def _report(self, race: str) -> None:
        if race not in self._races:
            self._races.append(race)


def _bytes_of(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's first entry begins in its storage, and its last one ends."""
    size = tensor.element_size()
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = int(tensor.storage_offset())
    return begin * size, (begin + int(last) + 1) * size
