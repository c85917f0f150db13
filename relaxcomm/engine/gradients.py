"""A bucket's gradients as views into one flat buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.buckets import Bucket
from relaxcomm.errors import UsageError


class GradientBuffer:
    """The flat gradients of a bucket, with one flag a tensor behind them.

    A flag says whether the tensor has a gradient on this rank; it travels with elementwise
    messages, so that a parameter unused on every rank keeps `.grad` None without a round trip of
    its own.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.parameters = [item.tensor for item in bucket.items]
        whole = torch.zeros(bucket.numel + len(bucket.items), dtype=bucket.dtype, device=bucket.device)
        self.whole, self.main, self.flags = whole, whole[: bucket.numel], whole[bucket.numel :]
        self.views = bucket.views(self.main)
        self.unused: list[int] = []

    def collect(self) -> None:
        """Copy gradients that do not lie in the buffer yet, and make `.grad` the views into it."""
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
        if fresh:
            self._adopt(fresh)
        self.flags.fill_(1)
        for index in self.unused:
            self.views[index].zero_()
            self.flags[index] = 0

    def settle(self, value: Tensor, used: Tensor) -> None:
        """Take the exchanged gradients, and decide what `.grad` of locally unused parameters is.

        Args:
            value: `[numel]`, combined gradients.
            used: `[tensors]`, above 0 where some rank has a gradient.
        """
        if value.data_ptr() != self.main.data_ptr():
            self.main.copy_(value)
        if self.unused:
            used_by_some = used.tolist()
            for index in self.unused:
                if used_by_some[index] > 0:
                    self.parameters[index].grad = self.views[index]

    def replace(self, value: Tensor | None) -> None:
        """Put another flat gradient (zeros for None) in the place of this step's own."""
        if value is None:
            self.main.zero_()
        else:
            self.main.copy_(value)

    def expose_all(self) -> None:
        """Give every parameter its view as `.grad`."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view

    def release(self) -> None:
        """Give gradients that are views their own memory, as before attach."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is view:
                parameter.grad = view.clone(memory_format=torch.preserve_format)

    def _adopt(self, fresh: list[int]) -> None:
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
        torch._foreach_copy_([self.views[index] for index in fresh], gradients)
        for index in fresh:
            self.parameters[index].grad = self.views[index]
