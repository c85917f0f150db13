"""A GPU that is pretended on the CPU: tensors say that they are on it, and what they cost is counted."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from relaxcomm.testing.gpu_work import GpuWork, makes_host_wait, makes_view, operator_of
from relaxcomm.testing.interpreted_kernels import counted_kernels, interprets_kernels
from relaxcomm.testing.pretend_cuda import patched_cuda
from relaxcomm.testing.pretend_tensors import patched_tensors

_COPIES = ("copy_", "_to_copy")


class PretendGpu:
    """Tensors on the device "cuda" without one: their numbers are the CPU's, what they cost is counted.

    Inside, `device="cuda"` and `.to("cuda")` work, tensors that were made so report it, and an operator on
    tensors of two devices is refused as on a GPU. Kernels run at once, so that no race shows. Those in Triton
    run where its interpreter was asked for (`TRITON_INTERPRET=1`), and torch's operators in their place else.

    Attributes:
        work: the host's waits, kernels and bytes since the last `clear`.

    Example:
        >>> import torch
        >>> from relaxcomm.testing import PretendGpu
        >>> with PretendGpu() as gpu:
        ...     x = torch.arange(4.0, device="cuda")
        ...     y = x * 2 + 1
        ...     print(y.device, y.sum().item())
        cuda:0 16.0
        >>> gpu.work.launches, [wait.split(" at ")[0] for wait in gpu.work.waits]
        (4, ['_local_scalar_dense'])
    """

    def __init__(self) -> None:
        self.work = GpuWork()
        self._there: dict[int, StorageWeakRef] = {}
        self._pinned: dict[int, StorageWeakRef] = {}
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> PretendGpu:
        self._stack.enter_context(patched_cuda(self.wait))
        self._stack.enter_context(patched_tensors(self))
        if interprets_kernels():
            self._stack.enter_context(counted_kernels(self.work.count_kernel))
        self._stack.enter_context(self.in_thread())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Count in this thread, too: PyTorch asks for operators in the thread that has said so."""
        with _Operators(self):
            yield

    def wait(self, what: str) -> None:
        """Note that the host waits here."""
        self.work.waits.append(f"{what} at {_place()}")

    def take(self, tensor: Tensor) -> Tensor:
        """From now on this tensor, and all that share its memory, are on the GPU."""
        self._remember(self._there, tensor)
        return tensor

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


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts operators, and lets what they make be where their arguments are."""

    def __init__(self, gpu: PretendGpu) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._gpu = gpu

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        gpu, words = self._gpu, kwargs or {}
        tensors = [one for one in tree_leaves((args, words)) if isinstance(one, Tensor)]
        there = [gpu.holds(tensor) for tensor in tensors]
        if not any(there):
            return func(*args, **words)
        if not all(there):
            self._check(func, args, tensors, there)
        if makes_host_wait(func, tensors, words):
            gpu.wait(operator_of(func))
        out = func(*args, **words)
        made = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        if not makes_view(func):
            gpu.work.count(func, [*(t for t, on in zip(tensors, there, strict=True) if on), *made])
        if there[0] or not operator_of(func).endswith("_"):
            for tensor in made:
                gpu.take(tensor)
        return out

    def _check(self, func: Any, args: Sequence[Any], tensors: Sequence[Tensor], there: list[bool]) -> None:
        """A copy between the host and the GPU, or a mistake."""
        name = operator_of(func)
        host = [tensor for tensor, on in zip(tensors, there, strict=True) if not on]
        if name in _COPIES:
            is_async = len(args) > 2 and bool(args[2]) and self._gpu.has_pinned(host[0])
            if not is_async:
                self._gpu.wait(f"{name} {'from' if there[0] else 'to'} the host")
        elif name.startswith("index"):
            self._gpu.wait("indices from the host")
        elif any(tensor.dim() for tensor in host):
            places = [f"{tuple(one.shape)} on {one.device}" for one in tensors]
            raise RuntimeError(f"{name}: expected all tensors on the same device, got {', '.join(places)}")


def _place() -> str:
    """The line that asked, outside of torch and of this folder."""
    for frame in reversed(traceback.extract_stack(limit=40)):
        path = Path(frame.filename)
        if "torch" not in path.parts and path.parent != Path(__file__).parent:
            return f"{path.parent.name}/{path.name}:{frame.lineno}"
    return "?"
