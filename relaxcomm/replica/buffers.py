"""Which of a model's buffers are copied from rank to rank, and which are averaged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from relaxcomm.errors import UsageError
from relaxcomm.replica.named_parameters import named_buffers, plain
from relaxcomm.system.torch_classes import derives_from
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item

_FAKE_QUANTIZER = "FakeQuantizeBase"
_NORM = "_NormBase"


def can_be_copied(tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own for each entry, which a sparse, nested or expanded one has not,
    and its bytes say all, which those of a quantised one do not without its scale."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    return not any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


class AveragedBuffers:
    """The buffers of a model that are averaged, now or later: floats of its state whose mean says something.

    Which they are is decided at attach, the same on all ranks; they are looked up afresh each time, since
    `.to()` replaces them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        left_out = {whole for whole, module, name in _named(model) if _stays_local(module, name)}
        kept = {name: one for name, one in named_buffers(model) if name not in left_out and _has_means(one)}
        self._shapes = {name: buffer.shape for name, buffer in kept.items()}
        self._statistics = frozenset(name for name, buffer in kept.items() if is_statistic(buffer))

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def hold(self, bucket: Bucket) -> bool:
        """Whether a bucket that `Replica.pack` has made is one of these."""
        return bucket.items[0].name in self

    def statistics(self) -> list[Item]:
        """Those that are averaged with parameters (BatchNorm's statistics).

        One of another shape than at attach, which other ranks may have kept, stands there as NaN of that
        shape: so all ranks see that it cannot be averaged.
        """
        found = self._held(self._statistics)
        return [Item(item.name, _in_shape(item.tensor, self._shapes[item.name])) for item in found]

    def others(self) -> list[Item]:
        """Those that were no statistics at attach, such as masks and empty ones, but may be by now."""
        return self._held(self._shapes.keys() - self._statistics)

    def shapes(self) -> dict[str, list[int]]:
        """Shapes of the `statistics`, as they are now."""
        return {item.name: list(item.tensor.shape) for item in self._held(self._statistics)}

    def check_shapes(self, shapes: Mapping[str, list[int]], rank: int) -> None:
        """Raise UsageError for a buffer that has another shape than at attach.

        Args:
            shapes: of a rank's buffers that are to be averaged.
            rank: whose.
        """
        for name, now in shapes.items():
            was = self._shapes[name]
            if now != list(was) and was.numel():  # an observer's range has no entry before its first batch
                raise UsageError(
                    f"the buffer {name} is averaged, and had the shape {list(was)} when the engine was "
                    f"attached; now it has {now} on rank {rank}, which others may not have. Keep a cache by "
                    "register_buffer(…, persistent=False), which stays on its rank; for another size on all "
                    "ranks close the engine before, and attach anew after"
                )

    def _held(self, names: Collection[str]) -> list[Item]:
        """In the order at attach, the same on all ranks: what is registered anew is last in the model."""
        held = dict(named_buffers(self._model)) if names else {}
        return [Item(name, held[name]) for name in self._shapes if name in names and name in held]


def is_statistic(buffer: Tensor) -> bool:
    """Whether a buffer that has means may be a statistic, as BatchNorm has, by what it holds now.

    A mean would spoil a mask of -inf, or of the least number that there is. A least or largest value that was
    seen may begin so, or without an entry, and become a statistic later.
    """
    return buffer.numel() > 0 and bool((buffer.abs() <= torch.finfo(buffer.dtype).max / 4).all())


def moved_by_forwards(model: nn.Module) -> set[str]:
    """Names of the running statistics, as of BatchNorm, that forwards in train mode move.

    Another module may hold them, too, and name them first.
    """
    norms = [module for module in model.modules() if derives_from(type(module), _NORM)]
    moved = {id(buffer) for norm in norms for buffer in norm.buffers()}
    return {name for name, buffer in named_buffers(model) if id(buffer) in moved}


def requantize(model: nn.Module) -> None:
    """Have fake quantizers take scale and zero point from what their observers hold, which is a mean now."""
    for module in model.modules():
        if derives_from(type(module), _FAKE_QUANTIZER) and _has_observed(module):
            pair = cast(Any, module).calculate_qparams()
            for name, value in zip(("scale", "zero_point"), pair, strict=True):
                held = module._buffers.get(name)  # one that is learnt is a parameter
                if held is not None and held.shape == value.shape:
                    held.copy_(value)


def _in_shape(buffer: Tensor, shape: torch.Size) -> Tensor:
    """The same where it has this shape, else NaN of it."""
    if buffer.shape == shape:
        return buffer
    return torch.full(shape, torch.nan, dtype=buffer.dtype, device=buffer.device)


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """For each buffer its name in the model, the module that has it, and its name there."""
    for place, module in model.named_modules():
        for name in module._buffers:
            yield plain(f"{place}.{name}" if place else name), module, name


def _stays_local(module: nn.Module, name: str) -> bool:
    """Whether a buffer is a cache, a mask of torch's pruning, or a fake quantizer's scale.

    Each rank computes those from what it holds; a scale fits its own zero point, an integer, alone.
    """
    is_cache = name in module._non_persistent_buffers_set
    is_mask = name.endswith("_mask") and f"{name.removesuffix('_mask')}_orig" in module._parameters
    return is_cache or is_mask or (name == "scale" and derives_from(type(module), _FAKE_QUANTIZER))


def _has_means(buffer: Tensor) -> bool:
    """Whether a buffer is of a type whose values have means, which entries of 8 bits have not."""
    return buffer.is_floating_point() and buffer.itemsize > 1 and can_be_copied(buffer)


def _has_observed(module: nn.Module) -> bool:
    """Whether a fake quantizer's observer has seen a range."""
    observer = getattr(module, "activation_post_process", None)
    least, largest = (getattr(observer, name, None) for name in ("min_val", "max_val"))
    if not (isinstance(least, Tensor) and isinstance(largest, Tensor) and least.numel()):
        return False
    return bool((least <= largest).all())
