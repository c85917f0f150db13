"""What of tensors and of the functions that make them follows a pretended GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from relaxcomm.testing.pretend_device import PretendDevice

GPU = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_FROM_NUMBERS = ("tensor", "as_tensor", "new_tensor")
_FACTORIES = (
    *("empty", "zeros", "ones", "full", "arange", "linspace", "eye", "tensor", "as_tensor"),
    *("rand", "randn", "randint", "randperm", "empty_like", "zeros_like", "ones_like", "full_like"),
    *("rand_like", "randn_like", "empty_strided"),
)
_METHODS = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")


@contextmanager
def patched_tensors(gpu: PretendDevice) -> Iterator[None]:
    """Let tensors report the device, and functions take it, in all threads."""
    device, is_cuda = vars(torch._C.TensorBase)["device"], vars(torch._C.TensorBase)["is_cuda"]
    tolist, numpy = torch.Tensor.tolist, torch.Tensor.numpy

    def refuse(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if gpu.holds(tensor):
            raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")
        gpu.host_accessed("numpy", [tensor])
        return numpy(tensor, *args, **kwargs)

    def listed(tensor: Tensor) -> Any:
        if gpu.holds(tensor):
            gpu.launched("tolist", [tensor], [])
            gpu.wait("tolist")
        gpu.host_accessed("tolist", [tensor])
        return tolist(tensor)

    stands_in: dict[str, Any] = {
        "device": property(lambda tensor: GPU if gpu.holds(tensor) else device.__get__(tensor)),
        "is_cuda": property(lambda tensor: gpu.holds(tensor) or is_cuda.__get__(tensor)),
        "to": _moving(gpu, torch.Tensor.to),
        "cuda": lambda tensor, device=None, non_blocking=False, **words: tensor.to(
            GPU, non_blocking=non_blocking, **words
        ),
        "cpu": lambda tensor, **words: tensor.to(_CPU, **words),
        "pin_memory": lambda tensor: gpu.pin(tensor.clone()),
        "is_pinned": lambda tensor: gpu.has_pinned(tensor),
        "record_stream": lambda tensor, stream: gpu.record_stream(tensor, stream),
        "numpy": refuse,
        "tolist": listed,
    }
    with ExitStack() as stack:
        for name, value in stands_in.items():
            stack.enter_context(patch.object(torch.Tensor, name, value))
        for owner, names in ((torch, _FACTORIES), (torch.Tensor, _METHODS)):
            for name in names:
                made = _making(gpu, name, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, made))
        padded = _padding(gpu, torch._C._nn.pad_sequence)
        stack.enter_context(patch.object(torch._C._nn, "pad_sequence", padded))
        yield


def _making(gpu: PretendDevice, name: str, factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A factory that takes the device."""

    def make(*args: Any, device: Any = None, pin_memory: bool = False, **words: Any) -> Tensor:
        if device is None:
            out = factory(*args, **words)
            return gpu.pin(out) if pin_memory else out
        on_gpu = torch.device(device).type == "cuda"
        with _disable_current_modes():
            out = factory(*args, device=_CPU if on_gpu else device, **words)
        if on_gpu:
            gpu.take(out)
            if "empty" not in name:
                gpu.launched(name, [], [out])
            if name in _FROM_NUMBERS:
                gpu.wait("numbers from the host")
            elif "empty" not in name:
                gpu.work.count_kernel(name, [out])
            return out
        return gpu.pin(out) if pin_memory else out

    return make


def _padding(gpu: PretendDevice, pad: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`pad_sequence`, which makes its result where it takes the first tensor to be."""

    def padded(rows: list[Tensor], *args: Any, **words: Any) -> Tensor:
        if not gpu.holds(rows[0]):
            return pad(rows, *args, **words)
        with _disable_current_modes():
            out = gpu.take(pad(rows, *args, **words))
        gpu.work.count_kernel("pad_sequence", [*rows, out])
        gpu.launched("pad_sequence", rows, [out])
        return out

    return padded


def _moving(gpu: PretendDevice, to: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`Tensor.to` that takes the device."""

    def move(tensor: Tensor, *args: Any, **words: Any) -> Tensor:
        other = next((one for one in args if isinstance(one, Tensor)), words.get("other"))
        named = words.get("device", next((one for one in args if isinstance(one, str | torch.device)), None))
        target = other.device if other is not None else None if named is None else torch.device(named)
        to_gpu = gpu.holds(tensor) if target is None else target.type == "cuda"
        if to_gpu == gpu.holds(tensor):
            out = to(tensor, *tree_map(_on_cpu, args), **tree_map(_on_cpu, words))
            return gpu.take(out) if to_gpu else out
        with _disable_current_modes():
            out = to(tensor, *tree_map(_on_cpu, args), **tree_map(_on_cpu, words))
            if out.data_ptr() == tensor.data_ptr():
                out = out.clone()
        # All of torch's signatures have `non_blocking` as their first flag.
        is_async = words.get("non_blocking", next((one for one in args if isinstance(one, bool)), False))
        is_staged = is_async and to_gpu and not gpu.has_pinned(tensor)
        if to_gpu:
            gpu.take(out)
        elif is_async:
            gpu.pin(out)
        if is_staged:  # the host has read it, and the GPU may still write
            gpu.host_accessed("to", [tensor])
            gpu.wait("a copy to the GPU")
        gpu.launched("to", [] if is_staged else [tensor], [out])
        if not is_async:
            gpu.wait("a copy to the GPU" if to_gpu else "a copy to the host")
        return out

    return move


def _on_cpu(value: Any) -> Any:
    is_gpu = isinstance(value, torch.device) and value.type == "cuda"
    return _CPU if is_gpu or (isinstance(value, str) and value.startswith("cuda")) else value
