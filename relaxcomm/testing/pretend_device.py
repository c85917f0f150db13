"""What of a pretended GPU is there at one moment: tensors, streams, and the work that was asked of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from relaxcomm.testing.autograd_streams import AutogradStreams
from relaxcomm.testing.gpu_work import GpuWork
from relaxcomm.testing.places import place
from relaxcomm.testing.pretend_cuda import PretendCuda, PretendStream
from relaxcomm.testing.stream_clocks import Clocks, join
from relaxcomm.testing.stream_order import StreamOrder


class PretendDevice:
    """Knows which tensors are on it, and counts what is done with them; see `PretendGpu`."""

    def __init__(self, *, check_streams: bool = False) -> None:
        self.work = GpuWork()
        self.races: list[str] = []
        self._there: dict[int, StorageWeakRef] = {}
        self._pinned: dict[int, StorageWeakRef] = {}
        self._lock = threading.Lock()
        self._cuda = PretendCuda(self._note, Clocks(is_eager=not check_streams))
        self._autograd = AutogradStreams(self._cuda)
        self._order = StreamOrder(self._cuda, self.races) if check_streams else None

    def wait(self, what: str) -> None:
        """Note that the host waits here for the current stream."""
        self._note(what)
        join(self._cuda.clocks.host(), self._cuda.current().clock)

    def _note(self, what: str) -> None:
        self.work.waits.append(f"{what} at {place()}")

    def launched(self, name: str, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> None:
        """Note, for races alone, a kernel on the current stream that is no operator of torch's."""
        if self._order is not None:
            self._order.launched(name, reads, writes)

    def host_accessed(self, name: str, reads: Iterable[Tensor], writes: Iterable[Tensor] = ()) -> None:
        """Note that the host looked at its own memory, or wrote there."""
        if self._order is not None:
            self._order.host_accessed(name, reads, writes)

    def record_stream(self, tensor: Tensor, stream: PretendStream) -> None:
        """A stream uses a tensor's memory, too."""
        if self._order is not None:
            self._order.recorded(tensor, stream.number)

    def note_forward(self, tensors: Sequence[Tensor]) -> None:
        """Autograd will go back over an operator on the current stream."""
        if self._order is not None:
            self._autograd.note_forward(tensors)

    def take(self, tensor: Tensor) -> Tensor:
        """From now on this tensor, and all that share its memory, are on the GPU."""
        if self._order is not None and not self.holds(tensor):
            self._order.allocated(tensor)
        self._remember(self._there, tensor)
        return tensor

    @property
    def checks_streams(self) -> bool:
        """Whether it looks for races."""
        return self._order is not None

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the GPU."""
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._there

    def pin(self, tensor: Tensor) -> Tensor:
        """Copies between the GPU and this tensor go on beside the host."""
        self._remember(self._pinned, tensor)
        return tensor

    def has_pinned(self, tensor: Tensor) -> bool:
        """Whether a tensor's memory is pinned."""
        return tensor.untyped_storage()._cdata in self._pinned

    def _remember(self, where: dict[int, StorageWeakRef], tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        with self._lock:
            # A weak reference keeps the address from being used again.
            where.setdefault(storage._cdata, StorageWeakRef(storage))  # type: ignore[no-untyped-call]  # torch's
            if len(where) % 1024 == 0:
                for address in [one for one, ref in where.items() if ref.expired()]:  # type: ignore[no-untyped-call]  # torch's
                    del where[address]
