"""Which tensor lies where in which flat buffer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from operator import attrgetter, is_

import torch
from torch import Tensor

from relaxcomm.errors import UsageError
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.differences import Difference
from relaxcomm.tensors.flat_views import flat_views
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.memory_order import Strides, dense_strides, shape_in_memory
from relaxcomm.tensors.precision import wide

_VIEW_BYTES = 8 << 10  # that a CPU copies in about the time in which it makes a view

_dtype, _device = attrgetter("dtype"), attrgetter("device")


class Bucket:
    """A flat buffer layout over tensors of one dtype and device.

    Args:
        index: position in the layout; buckets are exchanged in this order on all ranks.
        items: the tensors, in the order in which they lie in the flat buffer.
        strides: of each there; by default its own now.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Bucket, Item
        >>> weight, bias = torch.ones(2, 2), torch.zeros(2)
        >>> bucket = Bucket(0, [Item("weight", weight), Item("bias", bias)])
        >>> bucket.gather(bucket.empty())
        tensor([1., 1., 1., 1., 0., 0.])
        >>> bucket.scatter(torch.arange(6.0))
        >>> weight, bias
        (tensor([[0., 1.],
                [2., 3.]]), tensor([4., 5.]))
    """

    def __init__(self, index: int, items: Sequence[Item], strides: Sequence[Strides] | None = None) -> None:
        self.index = index
        self.items = tuple(items)
        self.names = tuple(item.name for item in self.items)
        first = self.items[0].tensor
        self.dtype, self.device = first.dtype, first.device
        sizes = (item.tensor.numel() for item in self.items)
        *self.offsets, self.numel = accumulate(sizes, initial=0)
        self.parameters = [item.parameter for item in self.items]
        self._held = [item.tensor for item in self.items]
        # Asked for once: an exchange makes views many times.
        self.strides: list[Strides] = list(map(dense_strides, self._held) if strides is None else strides)
        self._is_staged = self.device.type == "cpu" and self.nbytes <= _VIEW_BYTES * len(self._held)

    @cached_property
    def layout(self) -> Layout:
        """Names of the tensors, in flat order, and shapes as they lie there: transposed where memory is."""
        shapes = map(shape_in_memory, (item.tensor.shape for item in self.items), self.strides)
        return Layout(self.names, tuple(shapes))

    @property
    def nbytes(self) -> int:
        """Bytes of a flat buffer."""
        return self.numel * self.dtype.itemsize

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors themselves, in flat order, outside autograd."""
        return [item.tensor.detach() for item in self.items]

    @property
    def is_dense(self) -> bool:
        """Whether the memory of all tensors lies as in a flat buffer: without gaps, and as at layout time."""
        return [tensor.stride() for tensor in self._held] == self.strides  # may have changed

    @property
    def flat_tensors(self) -> list[tuple[int, Tensor]]:
        """Where each tensor begins in a flat buffer, and its memory as it lies there; if all are dense."""
        flat = [one.as_strided((one.numel(),), (1,)) for one in self.tensors]
        return list(zip(self.offsets, flat, strict=True))

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether it is a layout of just these tensors, in this order."""
        return len(tensors) == len(self._held) and all(map(is_, tensors, self._held))

    def empty(self) -> Tensor:
        """A new flat buffer, `[numel]`."""
        return torch.empty(self.numel, dtype=self.dtype, device=self.device)

    def temporary(self) -> Tensor:
        """A flat buffer for one exchange, `[numel]`, perhaps in memory that an earlier one used."""
        return buffer_pool.empty(self.numel, self.dtype, self.device)

    def zeros(self) -> Tensor:
        """A new flat buffer of zeros for what is kept from step to step, `[numel]`, at least float32."""
        return torch.zeros(self.numel, dtype=wide(self.dtype), device=self.device)

    def copy(self) -> Tensor:
        """A new flat buffer with what the tensors hold, `[numel]`, at least float32."""
        return self.gather(torch.empty(self.numel, dtype=wide(self.dtype), device=self.device))

    def views(self, flat: Tensor) -> list[Tensor]:
        """One view of `flat` for each tensor, with its shape and, where they are dense, its strides."""
        shapes = (one.shape for one in self._held)
        return flat_views(flat, zip(self.offsets, shapes, self.strides, strict=True))

    def gather(self, out: Tensor) -> Tensor:
        """Copy the tensors into the flat buffer `out` and return it."""
        self.check_unchanged()
        stage, views = self._stage_for(out)
        with torch.no_grad():
            torch._foreach_copy_(views, self._held)
            return out if stage is None else out.copy_(stage)

    def subtract_from(self, flat: Tensor, out: Tensor) -> Tensor:
        """Write how far the tensors have come from `flat`, `flat - tensors`, into the flat buffer `out`.

        They began at `flat` as their type holds it: what it cannot hold is no movement.
        """
        self.check_unchanged()
        with torch.no_grad():
            if self._is_staged and flat.shape == out.shape == (self.numel,):
                stage, views = self._stage
                torch._foreach_copy_(views, self._held)
                return torch.sub(flat.to(self.dtype), stage, out=out)
            if flat is out:
                torch._foreach_sub_(self.views(out), self._held)
                return out
            for view, tensor, result in zip(self.views(flat), self._held, self.views(out), strict=True):
                torch.sub(view.to(self.dtype), tensor, out=result)
        return out

    def difference(self, flat: Tensor) -> Difference | None:
        """What `subtract_from` would write, not made yet; None where that takes more than to subtract."""
        self.check_unchanged()
        if flat.dtype != self.dtype or not self.is_dense:
            return None
        held = [one for one in self.flat_tensors if one[1].numel()]
        return Difference(flat, [tensor for _, tensor in held], [offset for offset, _ in held])

    def scatter(self, flat: Tensor) -> None:
        """Copy the flat buffer into the tensors."""
        with torch.no_grad():
            torch._foreach_copy_(self._held, self._read(flat))

    def add(self, flat: Tensor) -> None:
        """Add the flat buffer to the tensors."""
        read = self._read if flat.dtype == self.dtype else self.views  # a sum is rounded once
        with torch.no_grad():
            torch._foreach_add_(self._held, read(flat))

    def check_unchanged(self) -> None:
        """Raise UsageError if a tensor was converted or moved since the layout was made."""
        if set(map(_dtype, self._held)) == {self.dtype} and set(map(_device, self._held)) == {self.device}:
            return
        for item in self.items:
            if item.tensor.dtype != self.dtype or item.tensor.device != self.device:
                raise UsageError(
                    f"{item.name} is now {item.tensor.dtype} on {item.tensor.device}, at attach it was "
                    f"{self.dtype} on {self.device}; close the engine, convert the model, attach again"
                )

    def _read(self, flat: Tensor) -> list[Tensor]:
        """Views of what `flat` holds, to be read at once."""
        stage, views = self._stage_for(flat)
        if stage is not None:
            stage.copy_(flat)
        return views

    def _stage_for(self, flat: Tensor) -> tuple[Tensor | None, list[Tensor]]:
        """Memory between the tensors and `flat`, None where there is no use for it, and the views to copy."""
        if self._is_staged and flat.shape == (self.numel,):
            return self._stage
        return None, self.views(flat)

    @cached_property
    def _stage(self) -> tuple[Tensor, list[Tensor]]:
        """A flat buffer of small tensors, with views made once; nobody else ever holds it."""
        with torch.inference_mode(False):  # else nothing could be copied to it outside that mode
            flat = self.empty()
            return flat, self.views(flat)

    def __repr__(self) -> str:
        return f"Bucket({self.index}: {len(self.items)} tensors, {self.numel} x {self.dtype}, {self.device})"
