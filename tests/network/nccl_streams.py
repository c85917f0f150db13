"""NCCL's streams on a pretended GPU that looks for races, as torch 2.11 has them.

An operation runs on a stream of its group, which waits for the stream that issues it; a work's wait makes the
current stream wait for it, and until then it holds what it reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from relaxcomm.network import communicators
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.testing import PretendGpu
from tests.network.pretended_nccl import BetweenGpus


class OnStream:
    """A work over Gloo, and where it is among what the streams do."""

    def __init__(self, work: Any, ended: torch.cuda.Event, held: list[Tensor]) -> None:
        self._work, self._ended, self._held = work, ended, held

    def wait(self) -> None:
        self._work.wait()
        self._ended.wait()
        self._held.clear()

    def is_completed(self) -> bool:
        return bool(self._work.is_completed()) and bool(self._ended.query())


class OnStreams(BetweenGpus):
    """Groups with a stream each."""

    def __init__(self, gpu: PretendGpu, rendezvous: Rendezvous, purpose: str) -> None:
        super().__init__(rendezvous, purpose)
        self._gpu, self._stream = gpu, torch.cuda.Stream()
        self._held: list[list[Tensor]] = []
        self._sent: list[Tensor] = []
        self._received: list[Tensor] = []

    def allreduce(self, tensors: list[Tensor], options: Any) -> Any:
        return self._run("allreduce", partial(super().allreduce, tensors, options), [], tensors)

    def _allgather_base(self, rows: Tensor, row: Tensor) -> Any:
        return self._run("allgather", partial(super()._allgather_base, rows, row), [row], [rows])

    def alltoall_base(self, rows: Tensor, sent: Tensor, *sizes: list[int]) -> Any:
        return self._run("alltoall", partial(super().alltoall_base, rows, sent, *sizes), [sent], [rows])

    def broadcast(self, tensors: list[Tensor], options: Any) -> Any:
        is_root = options.rootRank == self.rendezvous.membership.rank
        sides = (tensors, []) if is_root else ([], tensors)
        return self._run("broadcast", partial(super().broadcast, tensors, options), *sides)

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> None:
        with _disable_current_modes():
            super().send(tensors, rank, tag)
        self._sent += tensors

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> None:
        with _disable_current_modes():
            super().recv(tensors, rank, tag)
        self._received += tensors

    def _end_coalescing(self) -> Any:
        work = self._run("batch", super()._end_coalescing, self._sent, self._received)
        self._sent, self._received = [], []
        return work

    def _run(
        self, name: str, start: Callable[[], Any], reads: Sequence[Tensor], writes: Sequence[Tensor]
    ) -> OnStream:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._gpu.launched(f"NCCL's {name} for {self.purpose}", reads, writes)
        with _disable_current_modes():  # Gloo's own operators are no kernels
            work = start()
        held = [*reads, *writes]
        self._held.append(held)  # NCCL's watchdog has those for which nobody waits
        return OnStream(work, self._stream.record_event(), held)


class OnHost:
    """A Gloo group; what it is given in the host's memory it reads or writes there at once."""

    def __init__(self, gpu: PretendGpu, group: Any) -> None:
        self._gpu, self._group = gpu, group

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._group, name)

        def noted(*args: Any) -> Any:
            tensors = [one for one in tree_leaves(args) if isinstance(one, Tensor) and not one.is_cuda]
            self._gpu.host_accessed(f"Gloo's {name}", tensors)
            return found(*args)

        return noted if callable(found) else found


@contextmanager
def streams_checked() -> Iterator[PretendGpu]:
    """A pretended GPU that looks for races, and NCCL on it."""
    connect = Rendezvous.gloo
    with (
        PretendGpu(check_streams=True) as gpu,
        patch.object(communicators, "new_group", partial(OnStreams, gpu)),
        patch.object(Rendezvous, "gloo", lambda *args: OnHost(gpu, connect(*args))),
    ):
        yield gpu
