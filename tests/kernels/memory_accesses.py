"""Looks at what kernels do in memory, in Triton's interpreter.

It runs the programs of a launch one after the other, and takes any address; a GPU runs them at once, and ends
the process at an address that is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Addresses = NDArray[np.uint64]
NOBODY, SEVERAL = -1, -2
_MOST_BYTES = 1 << 28  # of a tensor whose bytes are followed; of a longer one only its bounds are held


class _Memory:
    """The entries of one tensor, or of several that overlap; and which program has touched each byte."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.is_followed = stop - start <= _MOST_BYTES
        if not self.is_followed:
            return
        self.writer, self.reader, self.adder = (np.full(stop - start, NOBODY, np.int32) for _ in range(3))
        self.written_in = np.zeros(stop - start, np.int32)
        """How many barriers the program had passed that wrote."""


class MemoryAccesses:
    """Those of one launch, program by program.

    Args:
        name: of the kernel, for errors.
        tensors: that the launch was given: nothing else may be read or written.

    Raises: AssertionError for an access outside, for one that meets another program's, and for one to what
        other threads of the program have written since its last barrier.
    """

    def __init__(self, name: str, tensors: Iterable[Tensor]) -> None:
        self._name, self._program, self._barriers = name, NOBODY, 0
        extents = _merged(_extent(one) for one in tensors if one.numel())
        self._memories = [_Memory(start, stop) for start, stop in extents]

    def begin(self) -> None:
        """The next program begins."""
        self._program, self._barriers = self._program + 1, 0

    def pass_barrier(self) -> None:
        """All threads of a program see what these have written."""
        self._barriers += 1

    def read(self, addresses: Addresses, itemsize: int) -> None:
        """A program reads."""
        for memory, at in self._found(addresses, itemsize, "reads"):
            writers = memory.writer[at]
            self._hold(self._are_mine(writers, memory.adder[at]), "reads what another program writes")
            fresh = (writers == self._program) & (memory.written_in[at] == self._barriers)
            self._hold(~fresh, "reads what it has written without a barrier between")
            readers = memory.reader[at]
            memory.reader[at] = np.where(
                (readers == NOBODY) | (readers == self._program), self._program, SEVERAL
            )

    def write(self, addresses: Addresses, itemsize: int) -> None:
        """A program writes."""
        for memory, at in self._found(addresses, itemsize, "writes"):
            self._hold(self._are_mine(memory.writer[at], memory.adder[at]), "writes what another writes")
            self._hold(self._are_mine(memory.reader[at]), "writes what another program reads")
            self._hold(np.unique(at).size == at.size, "writes an entry twice at once")
            memory.writer[at], memory.written_in[at] = self._program, self._barriers

    def add(self, addresses: Addresses, itemsize: int) -> None:
        """A program changes entries by an atomic operation."""
        for memory, at in self._found(addresses, itemsize, "changes"):
            self._hold(
                self._are_mine(memory.writer[at], memory.reader[at]), "changes what another reads or writes"
            )
            adders = memory.adder[at]
            memory.adder[at] = np.where(
                (adders == NOBODY) | (adders == self._program), self._program, SEVERAL
            )

    def _are_mine(self, *touched: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether no other program has touched each byte."""
        return np.logical_and.reduce([(one == NOBODY) | (one == self._program) for one in touched])

    def _found(
        self, addresses: Addresses, itemsize: int, verb: str
    ) -> Iterable[tuple[_Memory, NDArray[np.intp]]]:
        left = addresses.reshape(-1)
        for memory in self._memories:
            inside = (left >= memory.start) & (left + np.uint64(itemsize) <= memory.stop)
            if memory.is_followed and inside.any():
                yield memory, (left[inside] - np.uint64(memory.start)).astype(np.intp)
            left = left[~inside]
        self._hold(left.size == 0, f"{verb} {left.size} entries of no tensor that it was given")
        self._hold(addresses % np.uint64(itemsize) == 0, f"{verb} an entry at an address that is not its own")

    def _hold(self, holds: Any, what: str) -> None:
        if not np.all(holds):
            raise AssertionError(f"{self._name}: program {self._program} {what}")


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's entries begin and end in memory."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _merged(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same, of those that overlap one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(extents):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def look_at_memory(interpreter: Any) -> None:
    """Hold every launch in Triton's interpreter to what `MemoryAccesses` says."""
    current: list[MemoryAccesses] = []
    _look_at_launches(interpreter.GridExecutor, interpreter.InterpreterBuilder, current)
    _look_at_accesses(interpreter.InterpreterBuilder, current)
    _look_at_hints(interpreter)


def _look_at_launches(executor: Any, builder: Any, current: list[MemoryAccesses]) -> None:
    launch, begin = executor.__call__, builder.set_grid_idx

    def launched(self: Any, *args: Any, **named: Any) -> None:
        tensors = [one for one in (*args, *named.values()) if isinstance(one, Tensor)]
        current.append(MemoryAccesses(self.fn.__name__, tensors))
        try:
            launch(self, *args, **named)
        finally:
            current.clear()

    def begun(self: Any, *place: int) -> None:
        begin(self, *place)
        current[0].begin()

    executor.__call__, builder.set_grid_idx = launched, begun


def _look_at_accesses(builder: Any, current: list[MemoryAccesses]) -> None:
    load, store, add = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw

    def loaded(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        current[0].read(*_touched(ptrs, mask))
        return load(self, ptrs, mask, *rest)

    def stored(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        current[0].write(*_touched(ptrs, mask))
        return store(self, ptrs, value, mask, *rest)

    def added(self: Any, operator: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        current[0].add(*_touched(ptrs, mask))
        return add(self, operator, ptrs, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw = loaded, stored, added
    builder.create_barrier = lambda _: current[0].pass_barrier()


def _touched(ptrs: Any, mask: Any) -> tuple[Addresses, int]:
    """Addresses, and bytes of an entry."""
    return ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)], _itemsize(ptrs)


def _itemsize(ptrs: Any) -> int:
    return max(1, ptrs.get_element_ty().primitive_bitwidth // 8)


def _look_at_hints(interpreter: Any) -> None:
    patch = interpreter._patch_lang_core

    def patched(language: Any, scope: Any) -> None:
        patch(language, scope)
        for name, check in (("multiple_of", _check_multiple), ("max_contiguous", _check_contiguous)):
            scope.set_attr(language, name, looked_at(getattr(language, name), check))

    def looked_at(take: Any, check: Any) -> Any:
        def hint(tensor: Any, values: Any) -> Any:
            if tensor.dtype.scalar.is_ptr():
                for dim, value in enumerate(values):
                    check(np.moveaxis(tensor.handle.data, dim, -1), int(value), _itemsize(tensor.handle))
            return take(tensor, values)

        return hint

    interpreter._patch_lang_core = patched


def _check_multiple(addresses: Addresses, value: int, itemsize: int) -> None:
    assert (addresses[..., 0] % np.uint64(value) == 0).all(), f"an address is no multiple of {value}"


def _check_contiguous(addresses: Addresses, value: int, itemsize: int) -> None:
    groups = addresses.reshape(*addresses.shape[:-1], -1, value)
    assert (np.diff(groups, axis=-1) == itemsize).all(), f"{value} addresses do not follow each other"
