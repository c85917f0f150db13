"""The largest entries of each chunk."""

from __future__ import annotations

import functools
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import Steps, frozen
from relaxcomm.kernels import block_maxima
from relaxcomm.kernels.dispatch import uses_numba
from relaxcomm.primitives.compressors.block_top_k import BlockTopK, cuts, largest
from relaxcomm.primitives.compressors.weighted_sum import sum_sparse
from relaxcomm.roles import Coding, CompressorFacts, Context, State
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import BlockSparse
from relaxcomm.tensors.segments import Blocks


@frozen
class chunk_top_k(BlockTopK):
    """The entries of largest size in each chunk of a tensor; the others count as 0.

    `||C(x) - x||^2 <= (1 - k / chunk_size) ||x||^2`. Each tensor is cut on its own; its last chunk may be
    shorter. An index takes `ceil(log2 chunk_size)` bits. One of up to 256 float32 entries is chosen on a CPU
    by all bits but the last eight or fewer, the first of those that agree. Biased: use it in
    `error_feedback`.

    Args:
        num_kept: k, entries of each chunk.
        chunk_size: entries of a chunk.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import chunk_top_k
        >>> (arrived,) = round_trip(chunk_top_k(num_kept=64), [torch.arange(8192.0)])
        >>> (arrived[:4096] > 0).sum(), (arrived[4096:] > 0).sum()
        (tensor(64), tensor(64))

    Reference: Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", arXiv 2508.15706.
    """

    num_kept: Steps
    chunk_size: Steps = 4096

    facts: ClassVar[CompressorFacts] = BlockTopK.facts

    def makes_sum(self, tensor: Tensor) -> bool:
        return block_maxima.takes(tensor, self.num_kept, self.chunk_size) and uses_numba(tensor)

    def contraction(self, numel: int) -> float | None:
        size = max(1, min(numel, self.chunk_size))
        return 1 - min(self.num_kept, size) / size if numel else 0.0

    @functools.lru_cache(256)  # noqa: B019  the layouts of a few buckets
    def blocks(self, layout: Layout) -> tuple[Blocks, ...]:
        return tuple(
            Blocks(start + first, num, size, min(self.num_kept, size))
            for _, shape, start in layout.spans()
            for first, num, size in cuts(shape.numel(), self.chunk_size)
        )

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        blocks = self.blocks(cx.layout_of(tensor.numel()))
        message = BlockSparse(*largest(tensor, blocks, cx.terms), blocks)
        parts = yield message
        return sum_sparse(parts, tensor, out=cx.out), message if keep_sent else None
