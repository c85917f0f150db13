"""A sketch: a short sum of all entries with random signs, from which norms can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Count, Index, frozen
from relaxcomm.primitives.compressors.random_k import DRAWN_FACTS, UNIT, shared_seed
from relaxcomm.primitives.compressors.weighted_sum import sum_dense
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.host_copies import on_device
from relaxcomm.tensors.messages import SharedSupport
from relaxcomm.tensors.precision import wide

_CHUNK = 1 << 18  # entries that are added up at a time


@frozen
class count_sketch(Compressor):
    """`m = min(size, d)` sums of entries with random signs: `s_j = sum_(i: h(i) = j) z_i x_i`.

    Places h and signs z are drawn anew in each exchange from a seed that all ranks share, so that the
    messages can be all-reduced. An entry decodes to `z_i s_h(i)`, which is unbiased, with
    `E ||C(x) - x||^2 <= (d / m) ||x||^2`: far too coarse to step along. But `<x, C(x)> = ||s||^2` is
    `||x||^2` with a relative deviation of about `sqrt(2 / m)`, so that the norm of a mean costs m entries
    instead of d.

    Args:
        size: entries of a bucket's message.
        seed: of the drawing; the same on all ranks.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import count_sketch
        >>> x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
        >>> (arrived,) = round_trip(count_sketch(size=1024), [x])
        >>> round(float(x @ arrived / x.square().sum()), 2)
        0.98

    Reference: Charikar, Chen and Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002;
        for gradients Rothchild et al., "FetchSGD", ICML 2020.

    Differs from the paper: one row, read without a median.
    """

    size: Count
    seed: Index = 0

    facts: ClassVar[CompressorFacts] = DRAWN_FACTS

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {UNIT: torch.tensor(bucket.index)}

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        seed = shared_seed(self.seed, cx.step, int(state[UNIT]))
        sketch = self._encode(tensor, seed)
        sent = self._decode(sketch, tensor, seed) if keep_sent else None
        parts = yield SharedSupport(sketch)
        return self._decode(sum_dense(parts), tensor, seed), sent

    def _encode(self, tensor: Tensor, seed: int) -> Tensor:
        kept = wide(tensor.dtype)
        if tensor.numel() <= self.size:
            return tensor.to(kept, copy=True)
        sketch = torch.zeros(self.size, dtype=kept, device=tensor.device)
        for part, places, signs in self._drawn(tensor, seed):
            sketch.index_add_(0, places, part.to(kept) * signs)
        return sketch

    def _decode(self, sketch: Tensor, like: Tensor, seed: int) -> Tensor:
        if like.numel() <= self.size:
            return sketch.clone()  # an exchange may overwrite the message
        decoded = torch.empty_like(like, dtype=sketch.dtype)
        for part, places, signs in self._drawn(decoded, seed):
            part.copy_(sketch[places].mul_(signs))
        return decoded

    def _drawn(self, tensor: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Parts of a tensor, with the place and the sign of each entry; drawn on the CPU for all devices."""
        generator = torch.Generator().manual_seed(seed)
        for part in torch.split(tensor, _CHUNK):
            places = torch.randint(self.size, part.shape, generator=generator)
            signs = torch.randint(2, part.shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
            yield part, on_device(places, tensor.device), on_device(signs, tensor.device)

    def contraction(self, numel: int) -> float | None:
        return 0.0 if numel <= self.size else numel / self.size

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        count, width = self.values(numel, element_bytes)
        return count * width

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        return min(self.size, numel), max(element_bytes, 4)
