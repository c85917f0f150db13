"""A GPU that is pretended on the CPU: tensors say that they are on it, and what they cost is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from relaxcomm.testing.gpu_work import (
    fills_by_mask,
    makes_host_wait,
    makes_view,
    operator_of,
    reads_and_writes,
    waits_before_it_writes,
)
from relaxcomm.testing.interpreted_kernels import counted_kernels, interprets_kernels
from relaxcomm.testing.looked_at_threads import looked_at_threads
from relaxcomm.testing.pretend_cuda import patched_cuda
from relaxcomm.testing.pretend_device import PretendDevice
from relaxcomm.testing.pretend_tensors import patched_tensors

_COPIES = ("copy_", "_to_copy")


class PretendGpu(PretendDevice):
    """Tensors on the device "cuda" without one: their numbers are the CPU's, what they cost is counted.

    Inside, `device="cuda"` and `.to("cuda")` work, tensors that were made so report it, and an operator on
    tensors of two devices is refused as on a GPU. Kernels run at once. Those in Triton run where its
    interpreter was asked for (`TRITON_INTERPRET=1`), and torch's operators in their place else.

    Args:
        check_streams: look for races: bytes that one stream writes and another, or the host, reads or writes,
            where no event and no wait orders the two; memory that the allocator could give away while another
            stream uses it. Backward runs on the streams of the forward, threads that begin inside are looked
            at, too, and the first `query` of an event that nobody has waited for says False.

    Attributes:
        work: the host's waits, kernels and bytes since the last `clear`; those of `launched` are not in it.
        races: those found so far, each kind once.

    Example:
        >>> import torch
        >>> from relaxcomm.testing import PretendGpu
        >>> with PretendGpu() as gpu:
        ...     x = torch.arange(4.0, device="cuda")
        ...     y = x * 2 + 1
        ...     print(y.device, y.sum().item())
        cuda:0 16.0
        >>> gpu.work.launches, [wait.split(" at ")[0] for wait in gpu.work.waits]
        (5, ['_local_scalar_dense'])
        >>> with PretendGpu(check_streams=True) as gpu:
        ...     x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
        ...     with torch.cuda.stream(side):  # after no side.wait_stream(torch.cuda.current_stream())
        ...         y = x * 2
        >>> [race.split(" at ")[0] for race in gpu.races]
        ['mul']
    """

    def __init__(self, *, check_streams: bool = False) -> None:
        super().__init__(check_streams=check_streams)
        self._stack = ExitStack()

    def __enter__(self) -> PretendGpu:
        self._stack.enter_context(patched_cuda(self._cuda))
        self._stack.enter_context(patched_tensors(self))
        if interprets_kernels():
            launched = None if self._order is None else self.launched
            self._stack.enter_context(counted_kernels(self.work.count_kernel, launched))
        if self._order is not None:
            self._stack.enter_context(looked_at_threads(self._cuda.clocks, self.in_thread))
            self._stack.enter_context(self._autograd.patched())
        self._stack.enter_context(self.in_thread())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Count in this thread, too: PyTorch asks for operators in the thread that has said so."""
        with nullcontext() if any(self is mode._gpu for mode in _modes()) else _Operators(self):
            yield


def _modes() -> list[_Operators]:
    """Those of this thread."""
    return [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, _Operators)]


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts operators, and lets what they make be where their arguments are."""

    def __init__(self, gpu: PretendDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._gpu = gpu

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        gpu, words = self._gpu, kwargs or {}
        tensors = [one for one in tree_leaves((args, words)) if isinstance(one, Tensor)]
        there = [gpu.holds(tensor) for tensor in tensors]
        name = operator_of(func)
        if not any(there):
            out = func(*args, **words)
            if gpu.checks_streams and not makes_view(func):
                gpu.host_accessed(name, *reads_and_writes(func, args, words, out))
            return out
        gpu.note_forward(tensors)
        is_staged = name in _COPIES and there[0] and len(args) > 2 and bool(args[2])
        is_staged = is_staged and not (there[-1] or gpu.has_pinned(tensors[-1]))
        waits = self._waits(func, args, words, tensors, there)
        if is_staged or waits_before_it_writes(name):
            while waits:
                gpu.wait(waits.pop(0))
        out = func(*args, **words)
        made = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        if there[0] or not name.endswith("_"):
            for tensor in made:
                gpu.take(tensor)
        if not makes_view(func):
            gpu.work.count(func, [*(t for t, on in zip(tensors, there, strict=True) if on), *made])
            if gpu.checks_streams:
                self._launch(name, is_staged, *reads_and_writes(func, args, words, out))
        for wait in waits:
            gpu.wait(wait)
        return out

    def _waits(
        self,
        func: Any,
        args: Sequence[Any],
        words: Mapping[str, Any],
        tensors: Sequence[Tensor],
        there: list[bool],
    ) -> list[str]:
        """What the host waits for."""
        name = operator_of(func)
        if fills_by_mask(name, tensors, there):
            return []
        waits = [] if all(there) else self._crossings(name, args, tensors, there)
        return [*waits, name] if makes_host_wait(func, tensors, words) else waits

    def _launch(self, name: str, is_staged: bool, reads: list[Tensor], writes: list[Tensor]) -> None:
        """The GPU reads the host's memory in copies that are not staged; others take a number from there."""
        gpu = self._gpu
        if is_staged or name not in _COPIES:
            gpu.host_accessed(name, [one for one in reads if not gpu.holds(one)])
            reads = [one for one in reads if gpu.holds(one)]
        gpu.launched(name, reads, writes)

    def _crossings(
        self, name: str, args: Sequence[Any], tensors: Sequence[Tensor], there: list[bool]
    ) -> list[str]:
        """What the host waits for where tensors are on both sides: for copies; others are a mistake."""
        host = [tensor for tensor, on in zip(tensors, there, strict=True) if not on]
        if name in _COPIES:
            is_async = len(args) > 2 and bool(args[2]) and self._gpu.has_pinned(host[0])
            return [] if is_async else [f"{name} {'from' if there[0] else 'to'} the host"]
        if name.startswith("index"):
            is_value = len(host) == 1 and not (there[-1] or host[0].dim())
            return ["a number from the host" if is_value and "put" in name else "indices from the host"]
        if any(tensor.dim() for tensor in host):
            places = [f"{tuple(one.shape)} on {one.device}" for one in tensors]
            raise RuntimeError(f"{name}: expected all tensors on the same device, got {', '.join(places)}")
        return []
