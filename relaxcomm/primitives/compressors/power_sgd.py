"""Matrices as products of thin ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Index, Steps, frozen
from relaxcomm.kernels.dispatch import is_for_kernels
from relaxcomm.kernels.message_sums import stacked
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.weighted_sum import sum_dense
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.messages import Dense
from relaxcomm.tensors.precision import wide

_RIGHT = "right"


@frozen
class power_sgd(Compressor):
    """Each matrix M as `P Q^T` of low rank, by one step of power iteration from where the last one ended.

    `P = orthogonalised (1/N) sum_n M_n Q`, `Q <- (1/N) sum_n M_n^T P`, and all get `P Q^T`, the mean of
    the workers' `P (M_n^T P)^T`. Each P is orthogonalised on its own. A column of Q that would become 0, as
    of a matrix of zeros, stays as it was. A tensor of several dimensions is a matrix of its first by all
    others; vectors, and matrices that would not get smaller, are sent as they are. Of a matrix of n by m
    entries `matrix_rank (n + m)` numbers are sent. Biased: use it inside `error_feedback`, and with
    `all_reduce`, over which it takes two rounds.

    Args:
        matrix_rank: columns of P and Q; smaller where a matrix is.
        seed: of the first Q, the same on all ranks.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import power_sgd
        >>> m = torch.arange(100.0).unsqueeze(1) + torch.arange(50.0)
        >>> (arrived,) = round_trip(power_sgd(matrix_rank=2), [m])
        >>> torch.allclose(arrived, m, atol=1e-3), torch.linalg.matrix_rank(m)
        (True, tensor(2))

    Reference: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
        Optimization", NeurIPS 2019.
    """

    matrix_rank: Steps
    seed: Index = 0

    facts: ClassVar[CompressorFacts] = replace(
        identity.facts,
        rounds=2,
        scope="tensor",
        linear=False,
        unbiased=False,
        follows_results=True,
        keeps_finite=False,
        slots={_RIGHT: "equal"},
    )

    def contraction(self, numel: int) -> float | None:
        return 1.0  # of one worker: an orthogonal projection

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        # Drawn on the CPU, so that ranks with other devices draw the same.
        generator = torch.Generator().manual_seed(self.seed * 2**32 + bucket.index)
        numel = _Cut(bucket.layout, self.matrix_rank).right_numel
        drawn = torch.randn(numel, generator=generator, dtype=wide(bucket.dtype))
        return {_RIGHT: drawn.to(bucket.device)}

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        cut = _Cut(cx.layout_of(tensor.numel()), self.matrix_rank)
        tensor = tensor.to(state[_RIGHT].dtype)
        matrices, others = cut.matrices(tensor)
        lefts = _each(torch.matmul, matrices, cut.rights(state[_RIGHT]))
        parts = yield Dense(_joined([*lefts, *others], state[_RIGHT]))
        means = cut.lefts(sum_dense(parts))
        lefts = _each(lambda p: torch.linalg.qr(p).Q, means[: len(lefts)])
        rights = _each(lambda m, p: m.mT @ p, matrices, lefts)
        parts = yield Dense(_joined(rights, state[_RIGHT]))
        new = cut.rights(sum_dense(parts))
        result = cut.product(lefts, new, means[len(lefts) :], tensor)
        state[_RIGHT] = _joined(_each(_next, new, cut.rights(state[_RIGHT])), state[_RIGHT])
        return result, cut.product(lefts, rights, others, tensor) if keep_sent else None

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.layout_bytes(one_tensor(numel), element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        cut = _Cut(layout, self.matrix_rank)
        return (sum(cut.left_sizes) + cut.right_numel) * max(4, element_bytes)


class _Cut:
    """Which matrices lie in a flat tensor, and their ranks."""

    def __init__(self, layout: Layout, matrix_rank: int) -> None:
        self._spans: list[tuple[int, int, int, int]] = []  # start, rows, columns and rank of each matrix
        self._others: list[tuple[int, int]] = []  # start and size of what is sent as it is
        for _, shape, start in layout.spans():
            rows = shape[0] if len(shape) > 1 else 1
            columns = shape.numel() // rows
            rank = min(matrix_rank, rows, columns)
            if rank * (rows + columns) < shape.numel():
                self._spans.append((start, rows, columns, rank))
            else:
                self._others.append((start, shape.numel()))

    @property
    def left_sizes(self) -> list[int]:
        """Sizes of the parts of the first message: each P, then what is sent as it is."""
        return [rows * rank for _, rows, _, rank in self._spans] + [size for _, size in self._others]

    @property
    def right_numel(self) -> int:
        """Entries of all Q."""
        return sum(columns * rank for _, _, columns, rank in self._spans)

    def matrices(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The matrices, and what is sent as it is."""
        views = [flat[start : start + n * m].view(n, m) for start, n, m, _ in self._spans]
        return views, [flat[start : start + size] for start, size in self._others]

    def lefts(self, flat: Tensor) -> list[Tensor]:
        """Each P of a first message, `[rows, rank]`, then what was sent as it is."""
        parts = torch.split(flat, self.left_sizes)
        views = [part.view(n, -1) for part, (_, n, _, _) in zip(parts, self._spans, strict=False)]
        return [*views, *parts[len(views) :]]

    def rights(self, flat: Tensor) -> list[Tensor]:
        """Each Q, `[columns, rank]`."""
        parts = torch.split(flat, [m * rank for _, _, m, rank in self._spans])
        return [part.view(m, -1) for part, (_, _, m, _) in zip(parts, self._spans, strict=True)]

    def product(
        self, lefts: Sequence[Tensor], rights: Sequence[Tensor], others: Sequence[Tensor], like: Tensor
    ) -> Tensor:
        """Each `P Q^T` and what was sent as it is, as a tensor like `like`."""
        flat = torch.empty_like(like)
        matrices, rest = self.matrices(flat)
        made = _each(lambda p, q: p @ q.mT, lefts, rights)
        if matrices or rest:
            torch._foreach_copy_([*matrices, *rest], [*made, *others])
        return flat


def _each(function: Callable[..., Tensor], *arguments: Sequence[Tensor]) -> list[Tensor]:
    """The function of each; on a GPU of all that have equal shapes at once."""
    several = list(zip(*arguments, strict=True))
    if not several or not is_for_kernels(several[0][0]):
        return [function(*one) for one in several]
    alike: dict[tuple[torch.Size, ...], list[int]] = {}
    for index, one in enumerate(several):
        alike.setdefault(tuple(part.shape for part in one), []).append(index)
    found: dict[int, Tensor] = {}
    for indices in alike.values():
        parts = zip(*(several[index] for index in indices), strict=True)
        found.update(zip(indices, function(*map(stacked, parts)).unbind(), strict=True))
    return [found[index] for index in range(len(several))]


def _next(right: Tensor, before: Tensor) -> Tensor:
    """Q of the next step: a column of zeros, such as of a matrix of zeros, would lead nowhere for ever."""
    return torch.where(right.any(dim=-2, keepdim=True), right, before)


def _joined(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([like[:0], *(part.reshape(-1) for part in parts)])
