"""Compressors that correct a tensor by a residual in the passes in which they encode it."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from relaxcomm.kernels.dispatch import is_for_kernels, uses_triton
from relaxcomm.primitives.compressors.weighted_sum import sum_quantized
from relaxcomm.roles import Compressor, Context, Parts
from relaxcomm.tensors.messages import Message


class FusedFeedback(Compressor):
    """Makes the message of `u = x + decay e` and what it leaves of u, without a pass for each."""

    @abstractmethod
    def takes_feedback(self, tensor: Tensor) -> bool:
        """Whether `message_with_feedback` takes such a tensor."""

    @abstractmethod
    def message_with_feedback(
        self, cx: Context, tensor: Tensor, residual: Tensor, decay: float, out: Tensor
    ) -> Message:
        """The message of u; `out` becomes what it leaves of u.

        Args:
            cx: of this step.
            tensor: x, `[numel]`.
            residual: e, `[numel]`, at least float32.
            decay: of the residual.
            out: `[numel]`, like the residual.
        """

    @abstractmethod
    def decoded(self, parts: Parts, like: Tensor, out: Tensor | None = None) -> Tensor:
        """The weighted sum of what messages decode to, at least float32; in `out` if that fits."""


class QuantizedFeedback(FusedFeedback):
    """Fused feedback of quantised messages, in the kernels for GPUs."""

    def decoded(self, parts: Parts, like: Tensor, out: Tensor | None = None) -> Tensor:
        return sum_quantized(parts, like, out)

    def takes_feedback(self, tensor: Tensor) -> bool:
        return is_for_kernels(tensor)

    def takes_shards(self, tensor: Tensor) -> bool:
        """Whether `cx.shard_size` may be given: in Triton a shard takes no launch."""
        return is_for_kernels(tensor) and uses_triton(tensor)
