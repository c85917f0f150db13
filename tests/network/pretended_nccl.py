"""Groups and streams that look like NCCL's and a GPU's, on the CPU: a wait orders a stream, and no more.

`Connected` groups do over Gloo what they are asked for. `Stuck` ones do nothing, from some operation on.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from relaxcomm.network import TorchTransport, communicators, torch_distributed
from relaxcomm.network.mailbox import FOR_EVER
from relaxcomm.network.point_to_point import ThreadedWork
from relaxcomm.network.process_groups import close_connections
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.testing import PretendGpu

DEVICE = torch.device("cuda", 0)
calls: list[str] = []
"""What was asked of the groups of this process, in order, such as "abort neighbors"."""


class Found:
    """What NCCL says of itself."""

    def __init__(self, name: str) -> None:
        self.name = name


class Stream:
    """The one stream of this process, which waits for works."""

    works: ClassVar[list[Any]] = []


class Mark:
    """Has passed when works have ended; a place on the host's clock, since kernels run at once."""

    def __init__(self, before: list[Any]) -> None:
        self._before, self._seconds = before, time.perf_counter()

    def query(self) -> bool:
        return all(work.is_completed() for work in self._before)

    def elapsed_time(self, later: Mark) -> float:
        return 1e3 * (later._seconds - self._seconds)


class Streams:
    """Marks have passed when all works have ended that the stream waited for before."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> Mark:
        return Mark(list(Stream.works))

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Callable[[], bool]]:
        copy = self.host_memory(tensor)
        looks = iter([False, False])

        def copied() -> bool:  # the third look finds it
            if not next(looks, True):
                return False
            copy.copy_(tensor)
            return True

        return copy, copied

    def host_memory(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype)


class Group:
    """What all pretended groups do alike."""

    def __init__(self, rendezvous: Rendezvous, purpose: str) -> None:
        self.rendezvous, self.purpose = rendezvous, purpose
        self.aborted = threading.Event()
        calls.append(f"make {purpose}")

    def eager_connect_single_device(self, device: torch.device) -> None:
        calls.append(f"connect {self.purpose} {device}")

    def abort(self) -> None:
        calls.append(f"abort {self.purpose}")
        self.aborted.set()

    def shutdown(self) -> None:
        calls.append(f"shutdown {self.purpose}")

    def get_error(self) -> Found:
        return Found("SUCCESS")


class Done:
    """A work over Gloo; as its tensors are the CPU's, waiting for it really waits."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        self._work.wait()
        Stream.works.append(self)

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


class _Batch(ThreadedWork):
    def wait(self, timeout: timedelta = FOR_EVER) -> None:
        super().wait(timeout)


class Connected(Group):
    """Does over Gloo what it is asked for."""

    def __init__(self, rendezvous: Rendezvous, purpose: str) -> None:
        super().__init__(rendezvous, purpose)
        self._gloo = rendezvous.gloo(f"pretended {purpose}")
        self._batch: list[Any] | None = None

    def allreduce(self, tensors: list[Tensor], options: Any) -> Done:
        return Done(self._gloo.allreduce(tensors, options))

    def _allgather_base(self, rows: Tensor, row: Tensor) -> Done:
        return Done(self._gloo.allgather([list(rows.unbind(0))], [row]))

    def alltoall_base(self, rows: Tensor, sent: Tensor, *sizes: list[int]) -> Done:
        return Done(self._gloo.alltoall_base(rows, sent, *sizes))

    def broadcast(self, tensors: list[Tensor], options: Any) -> Done:
        return Done(self._gloo.broadcast(tensors, options))

    def _start_coalescing(self) -> None:
        assert self._batch is None
        self._batch = []

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> None:
        assert self._batch is not None, "alone, a send would wait for its receive"
        self._batch.append(self._gloo.send(tensors, rank, tag))

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> None:
        assert self._batch is not None, "alone, a receive would wait for its send"
        self._batch.append(self._gloo.recv(tensors, rank, tag))

    def _end_coalescing(self) -> Done:
        assert self._batch, "NCCL gives no work for an empty batch"
        batch, self._batch = self._batch, None
        return Done(_Batch(batch, FOR_EVER))

    def abort(self) -> None:
        super().abort()
        close_connections(self._gloo, self.rendezvous.membership)
        self._gloo = None

    def shutdown(self) -> None:
        super().shutdown()
        self._gloo = None


class Never:
    """A work that ends when its group is aborted; whoever waits for it goes on at once."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def wait(self) -> None:
        Stream.works.append(self)

    def is_completed(self) -> bool:
        return self._group.aborted.is_set()


class _Ended(Never):
    def is_completed(self) -> bool:
        return True


class Stuck(Group):
    """Its operations end until `ending` of them were begun, and then no more."""

    ending = 1
    error = "SUCCESS"

    def __init__(self, rendezvous: Rendezvous, purpose: str) -> None:
        super().__init__(rendezvous, purpose)
        self._begun = 0

    def allreduce(self, tensors: list[Tensor], options: Any) -> Never:
        self._begun += 1
        return _Ended(self) if self._begun <= self.ending else Never(self)

    def get_error(self) -> Found:
        return Found(self.error if self._begun > 1 else "SUCCESS")


class Unreachable(Stuck):
    """Never connects, as where a rank has ended before it came."""

    def eager_connect_single_device(self, device: torch.device) -> None:
        super().eager_connect_single_device(device)
        self.aborted.wait()


@contextmanager
def pretended(kind: type[Group]) -> Iterator[None]:
    """Have groups of a kind made in the place of NCCL's."""
    calls.clear()
    Stream.works.clear()
    with (
        patch.object(communicators, "new_group", kind),
        patch.object(torch_distributed, "Streams", Streams),
    ):
        yield


class BetweenGpus(Connected):
    """Takes tensors on a (pretended) GPU alone, as NCCL does."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("allreduce", "_allgather_base", "alltoall_base", "broadcast", "send", "recv"):
            return found

        def checked(*args: Any) -> Any:
            tensors = [one for one in tree_leaves(args) if isinstance(one, Tensor)]
            assert all(one.is_cuda for one in tensors), f"{name} of what is not on a GPU"
            return found(*args)

        return checked


def train_on_a_gpu() -> None:
    """From now on this process has one, connected by NCCL, until it ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    stack.enter_context(pretended(BetweenGpus))
    stack.enter_context(PretendGpu())


def transport(timeout_seconds: float = 30, **settings: Any) -> TorchTransport:
    """Between all ranks, over what `pretended` gives."""
    return TorchTransport.of(
        None, device=DEVICE, backend="auto", timeout_seconds=timeout_seconds, debug=False, **settings
    )
