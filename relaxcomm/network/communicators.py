"""NCCL groups: made when all ranks come to the first operation on them, and ended all at once; its works."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from relaxcomm.errors import ConfigError
from relaxcomm.network.endings import at_exit
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.threaded_call import ThreadedCall

Wait: TypeAlias = Callable[[Any], None]
"""Waits for a work, in slices, and raises what others' failure is for this rank."""

_ABORT_LIMIT = _EXIT_LIMIT = timedelta(seconds=5)
_POLL_SECONDS = 1e-4
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


class Communicators:
    """The NCCL groups of one rank, of which torch's registry knows nothing.

    Args:
        rendezvous: where the ranks meet.
        device: where their tensors are.
    """

    def __init__(self, rendezvous: Rendezvous, device: torch.device) -> None:
        self._rendezvous, self._device = rendezvous, device
        self._groups: dict[str, Any] = {}  # in the order in which all ranks have made them
        self._lock = threading.Lock()
        self._aborts: list[ThreadedCall] = []
        self._is_aborted = False

    def get(self, purpose: str, wait: Wait) -> Any:
        """The group for a purpose; all ranks ask in the same order, and the first time they make it.

        It is connected then, by all: a first batch of sends and receives that a rank leaves out, since it
        has no neighbours, is undefined, and may hang the others.

        Args:
            purpose: of the group.
            wait: for the other ranks.
        """
        if purpose not in self._groups:
            group = self._groups[purpose] = new_group(self._rendezvous, purpose)
            _open.add(self)
            at_exit(_destroy_all)
            wait(ThreadedCall(partial(group.eager_connect_single_device, self._device)))
        return self._groups[purpose]

    def error(self) -> str:
        """What NCCL itself has found wrong on any of them; nothing otherwise."""
        for purpose, group in list(self._groups.items()):
            ask = getattr(group, "get_error", None)  # not every build of torch tells
            if ask is not None and (found := ask().name) != "SUCCESS":
                return f"NCCL reports {found} on the group for {purpose}"
        return ""

    def abort(self) -> None:
        """End all that is under way on all of them, together: one alone could wait for another's kernel.

        Kernels end at once. NCCL takes seconds more to let go of a rank that has ended; whoever asks waits
        for that, but not for ever.
        """
        with self._lock:
            self._is_aborted = True
            if not self._aborts:
                self._aborts = [ThreadedCall(group.abort) for group in reversed(list(self._groups.values()))]
        for call in self._aborts:
            with suppress(RuntimeError):  # nothing else can be done
                call.wait(_ABORT_LIMIT)

    def destroy(self, limit: timedelta) -> None:
        """Let go of them, the newest first, as all ranks do: when all have ended well they are shut down.

        Args:
            limit: the longest wait for the other ranks to do the same; then they are aborted.
        """
        for group in reversed(self._groups.values()):
            if not self._is_aborted:  # not even the others, once one could not be shut down
                try:
                    ThreadedCall(group.shutdown).wait(limit)
                except RuntimeError:
                    self.abort()
        self._groups.clear()
        _open.discard(self)


class PolledWork:
    """An operation of NCCL's as a work that the host waits for: NCCL's own wait only orders the stream.

    Args:
        work: of torch's.
        error: what NCCL has found wrong; nothing otherwise. An operation that broke has ended, too.
    """

    def __init__(self, work: Any, error: Callable[[], str]) -> None:
        self._work, self._error = work, error

    def wait(self, timeout: timedelta) -> None:
        """Wait at most `timeout`; afterwards the current stream may use what came.

        Raises: RuntimeError if that was not enough, or if the operation failed.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._work.is_completed():
            if time.monotonic() >= deadline:
                raise RuntimeError(f"not complete within {timeout.total_seconds():g} s")
            time.sleep(_POLL_SECONDS)
        if wrong := self._error():
            raise RuntimeError(wrong)
        self._work.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._work.is_completed())


_open: set[Communicators] = set()  # held, as torch's registry would: dropped alone they could not end well


def _destroy_all() -> None:
    """Let go of those that nobody has closed."""
    for one in list(_open):
        one.destroy(_EXIT_LIMIT)


def new_group(rendezvous: Rendezvous, purpose: str) -> Any:
    """An NCCL group of all ranks, not connected yet, whose failures are left to us.

    torch's own watchdog would end the process as soon as NCCL reports that a connection broke, whatever the
    time limit. So it only writes down what it sees. Its limit, after which it does the same, is later than
    ours (`Rendezvous.limit`): else another thread of its own would count until it ends a process in which
    an operation has timed out.

    Raises: ConfigError if PyTorch was built without NCCL.
    """
    if not dist.is_nccl_available():
        raise ConfigError(
            "backend: nccl is not a part of this PyTorch; install a build that has it, or use gloo"
        )
    from torch.distributed.distributed_c10d import ProcessGroupNCCL  # else there is none

    name, mine = f"{rendezvous.name}/{purpose}", rendezvous.membership
    options = ProcessGroupNCCL.Options()
    options._timeout = rendezvous.limit
    options.group_name = name  # type: ignore[assignment]  # a NewType of torch's, for its own registry
    options.global_ranks_in_group = list(rendezvous.ranks)
    with _failures_left_to_us():
        return ProcessGroupNCCL(PrefixStore(name, rendezvous.store), mine.rank, mine.world_size, options)


@contextmanager
def _failures_left_to_us() -> Iterator[None]:
    """torch reads the variable when a group is made, and torchrun sets it."""
    before = os.environ.get(_ERROR_HANDLING)
    os.environ[_ERROR_HANDLING] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ERROR_HANDLING]
        else:
            os.environ[_ERROR_HANDLING] = before
