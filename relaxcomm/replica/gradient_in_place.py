"""A large gradient that is exchanged where autograd has put it, without a copy."""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch
from torch import Tensor

from relaxcomm.replica.gradient_buffer import CACHED_BYTES, check_gradients
from relaxcomm.replica.user_gradients import UserGradients, has_own_memory
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item


def can_stay(item: Item) -> bool:
    """Whether a gradient is so large that a copy costs more than a message of its own."""
    tensor = item.tensor
    return item.sharded is None and tensor.device.type == "cpu" and tensor.nbytes >= CACHED_BYTES


class GradientInPlace:
    """The gradient of a bucket of one tensor, as `GradientBuffer` has those of several.

    No flag fits behind it, so the sign of a zero says whether any rank has one: a rank that has none sends
    -0.0, a gradient never begins with it, and a sum is -0.0 only if all of it is.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._parameter = bucket.items[0].parameter
        self.theirs = UserGradients([self._parameter])
        """It, where it is a tensor of the training loop's own."""
        self._flat: Tensor | None = None
        self._strides = bucket.views(torch.empty(bucket.numel, device="meta"))[0].stride()
        self.flags = torch.zeros(1, dtype=bucket.dtype)
        self.unused: list[int] = []
        self.large: list[int] = []

    @property
    def main(self) -> Tensor:
        """The gradient, flat; minus zeros where there is none."""
        if self._flat is None:
            self._flat = torch.full((self.bucket.numel,), -0.0, dtype=self.bucket.dtype)
        return self._flat

    @property
    def whole(self) -> Tensor:
        """What is sent."""
        return self.main

    @property
    def views(self) -> list[Tensor]:
        """The gradient in its own shape, no view to autograd, so that loops may `p.grad.detach_()`."""
        return [view.detach() for view in self.bucket.views(self.main)]

    def expect_all(self) -> None:
        """Nothing is exchanged yet, so that no parameter is known to have no gradient."""
        self.unused = []
        self._flat = None

    def take(self, index: int, factor: float | None) -> None:
        """Nothing is taken before it is collected: the bucket is complete with its one gradient."""

    def collect(self, factor: float | None = None, missing: Set[str] = frozenset()) -> None:
        """Multiply the gradient where it is, unless it shares its memory.

        Args:
            factor: by which; None for 1.
            missing: parameters whose `.grad` is as it was before this backward.
        """
        gradient = self._parameter.grad
        self.unused = [0] if gradient is None else []
        self.flags.fill_(gradient is not None)
        self._flat = None
        if gradient is None:
            return
        if not self._is_alone(gradient):
            self.theirs.take({0: gradient}, [0] if self.bucket.names[0] in missing else [])
            gradient = self._parameter.grad = self._copy(gradient)
        self._flat = gradient.as_strided((self.bucket.numel,), (1,))
        if factor is not None:
            self._flat.mul_(factor)
        self._flat[:1].add_(0.0)  # -0.0 becomes 0.0

    def take_flags(self, result: Tensor) -> None:
        """Find in a result whether any rank has a gradient."""
        if self.unused:
            first = torch.view_as_real(result[:1])[:, 0] if result.is_complex() else result[:1]
            self.flags.copy_((result[:1] != 0) | ~first.signbit())

    def expose_used(self, used: Sequence[complex]) -> None:
        """Give a locally unused parameter a `.grad` where `used` says that some rank has a gradient."""
        if self.unused and used[0]:
            self._parameter.grad = self.views[0]

    def nonzero_flags(self) -> Tensor:
        """Whether the gradient has an entry other than zero, 1 or 0."""
        return self.main.any().float().view(1)

    def hide(self) -> None:
        """Look at the gradient no more, which has its own memory."""
        self.release()
        self._flat = None

    def release(self) -> None:
        """Give back a tensor of the training loop's own; any other gradient has its own memory."""
        self.theirs.give_back()

    def _is_alone(self, gradient: Tensor) -> bool:
        """Whether nobody else looks at its memory: views of one gradient may be those of two parameters."""
        return (
            gradient.layout == torch.strided
            and gradient.dtype == self.bucket.dtype
            and gradient.numel() == self.bucket.numel
            and not gradient.requires_grad  # else a graph would keep it for a second derivative
            and gradient.stride() == self._strides
            and has_own_memory(gradient)
        )

    def _copy(self, gradient: Tensor) -> Tensor:
        check_gradients(self.bucket)
        own = torch.empty_strided(gradient.shape, self._strides, dtype=self.bucket.dtype)
        return own.copy_(gradient.detach())
