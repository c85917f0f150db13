"""A bucket's gradients as views into one flat buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from relaxcomm.errors import UsageError
from relaxcomm.tensors.buckets import Bucket


class GradientBuffer:
    """The flat gradients of a bucket, with one flag a tensor behind them.

    A flag says whether the tensor has a gradient on this rank; it travels with elementwise
    messages, so that a parameter unused on every rank keeps `.grad` None without a round trip of
    its own.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.parameters = [item.tensor for item in bucket.items]
        self.whole = torch.zeros(bucket.numel + len(bucket.items), dtype=bucket.dtype, device=bucket.device)
        self.main, self.flags = self.whole[: bucket.numel], self.whole[bucket.numel :]
        self.views = bucket.views(self.main)
        self.unused: list[int] = []

    def expect_all(self) -> None:
        """Nothing is exchanged yet, so that no parameter is known to have no gradient."""
        self.unused = []

    def collect(self, factor: float | None = None) -> None:
        """Copy gradients that do not lie in the buffer yet, and make `.grad` the views into it.

        Args:
            factor: by which all are multiplied on the way, while they are in the cache; None for 1.
        """
        fresh: list[int] = []
        self.unused = []
        for index, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                self.unused.append(index)
            else:
                fresh.append(index)
        if factor is not None and len(fresh) + len(self.unused) < len(self.views):
            moved = {*fresh, *self.unused}
            torch._foreach_mul_([v for i, v in enumerate(self.views) if i not in moved], factor)
        if fresh:
            self._adopt(fresh, factor)
        self.flags.fill_(1)
        for index in self.unused:
            self.views[index].zero_()
            self.flags[index] = 0

    def take_flags(self, flags: Tensor) -> None:
        """Copy the flags that came behind a result, unless they lie here already."""
        if flags.numel() and flags.data_ptr() != self.flags.data_ptr():
            self.flags.copy_(flags)

    def expose_used(self, used: Sequence[float]) -> None:
        """Give locally unused parameters a `.grad` where `used` says that some rank has a gradient."""
        self.expose([index for index in self.unused if used[index] > 0])

    def expose(self, indices: Iterable[int]) -> None:
        """Make the views `.grad` of some parameters."""
        for index in indices:
            self.parameters[index].grad = self.views[index]

    def release(self) -> None:
        """Give gradients that are views their own memory, as before attach."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is view:
                parameter.grad = view.clone(memory_format=torch.preserve_format)

    def _adopt(self, fresh: list[int], factor: float | None) -> None:
        gradients = []
        for index in fresh:
            gradient = self.parameters[index].grad
            assert gradient is not None
            if gradient.layout != torch.strided:
                raise UsageError(
                    f"{self.bucket.names[index]} has a sparse gradient, which no exchange here takes; use "
                    "sparse=False in its embedding"
                )
            gradients.append(gradient)
        self.bucket.check_unchanged()
        views = [self.views[index] for index in fresh]
        if factor is None:
            torch._foreach_copy_(views, gradients)
        else:
            for view, gradient in zip(views, gradients, strict=True):
                torch.mul(gradient, factor, out=view)
        self.expose(fresh)
