"""What all sparsifiers share: fixed capacity, and how messages are made and added up."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from relaxcomm.fields.schedules import largest, piecewise, value_at
from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.kernels.dispatch import is_for_kernels
from relaxcomm.primitives.compressors.fused_feedback import FusedFeedback
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.threshold_search import Magnitudes
from relaxcomm.primitives.compressors.weighted_sum import sum_sparse
from relaxcomm.roles import Coding, CompressorFacts, Context, Parts, State
from relaxcomm.tensors.messages import MOST_PLACES, SPARSE, Sparse
from relaxcomm.tensors.precision import wide

COUNT_BYTES = 4
INDEX_BYTES = 4


def num_kept(density: float, numel: int) -> int:
    """How many of `numel` entries a density stands for: `max(floor(density numel), 1)`, and 0 of none."""
    return min(numel, max(int(density * numel), 1))


class Sparsifier(FusedFeedback):
    """Sends some entries, chosen by `select`, in messages of a capacity that depends on the clock alone."""

    density: float | piecewise
    scope: Literal["model", "bucket"]

    @cached_property
    def facts(self) -> CompressorFacts:
        return replace(
            identity.facts,
            kinds=frozenset({SPARSE}),
            scope=self.scope,
            linear=False,
            unbiased=False,
            follows_clock=isinstance(self.density, piecewise),
            keeps_finite=False,
            most_entries=MOST_PLACES,
        )

    @abstractmethod
    def select(self, sizes: Magnitudes, density: float, capacity: int) -> Tensor:
        """Indices (int64, at most `capacity`) of the entries that are sent, for the density of this step."""

    def capacity(self, k: int, numel: int) -> int:
        """The most entries that a message holds when `k` are asked for."""
        return k

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        message = self.message(tensor, *self._wanted(cx, tensor))
        parts = yield message
        return self.decoded(parts, tensor, cx.out), message if keep_sent else None

    def decoded(self, parts: Parts, like: Tensor, out: Tensor | None = None) -> Tensor:
        return sum_sparse(parts, like, out=out)

    def message(self, tensor: Tensor, density: float, capacity: int) -> Sparse:
        """The entries that `select` chooses."""
        return pack_selected(tensor, self._chosen(Magnitudes(tensor), density, capacity), capacity)

    def takes_feedback(self, tensor: Tensor) -> bool:
        is_plain = tensor.device.type == "cpu" and not is_for_kernels(tensor)
        return is_plain and tensor.dtype == wide(tensor.dtype) and tensor.numel() > 0

    def message_with_feedback(
        self, cx: Context, tensor: Tensor, residual: Tensor, decay: float, out: Tensor
    ) -> Sparse:
        density, capacity = self._wanted(cx, tensor)
        indices = self._chosen(Magnitudes(out, (tensor, residual, decay)), density, capacity)
        message = pack_selected(out, indices, capacity)
        out.index_fill_(0, indices, 0)
        return message

    def _wanted(self, cx: Context, tensor: Tensor) -> tuple[float, int]:
        """The density of this step, and the entries that a message holds."""
        density = value_at(self.density, cx.step - cx.start)
        return density, self.capacity(num_kept(density, tensor.numel()), tensor.numel())

    def _chosen(self, sizes: Magnitudes, density: float, capacity: int) -> Tensor:
        """What `select` chooses; of a tensor that is not finite an entry that shows it."""
        tensor = sizes.tensor
        if not tensor.numel():
            return torch.empty(0, dtype=torch.int64, device=tensor.device)
        indices = self.select(sizes, density, capacity)
        if is_for_kernels(tensor) or sizes.is_finite():  # to a GPU's selections NaN is the largest
            return indices
        spoilt = torch.nonzero(~torch.isfinite(tensor)).view(-1)
        # Never hidden: one entry that is not finite reaches all ranks.
        chosen: Tensor = torch.unique(torch.cat([spoilt[:1], indices[: max(0, capacity - 1)]]))
        return chosen

    def values(self, numel: int, element_bytes: int) -> tuple[int, int]:
        return self.capacity(num_kept(largest(self.density), numel), numel), element_bytes

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        kept, _ = self.values(numel, element_bytes)
        return kept * (element_bytes + INDEX_BYTES) + COUNT_BYTES


def pack_selected(tensor: Tensor, indices: Tensor, capacity: int) -> Sparse:
    """A message of the entries at `indices`."""
    count = indices.numel()
    if count == capacity:
        values, places = tensor.index_select(0, indices), indices.int()
    else:
        values, places = tensor.new_zeros(capacity), indices.new_zeros(capacity, dtype=torch.int32)
        torch.index_select(tensor, 0, indices, out=values[:count])
        places[:count] = indices
    return Sparse(values, places, device_numbers((count,), torch.int32, tensor.device))
