"""A density that follows what is gained by sending more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Share, Steps, frozen
from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.kernels.message_sums import stacked
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.compressors.sparsifier import COUNT_BYTES, INDEX_BYTES, num_kept, pack_selected
from relaxcomm.primitives.compressors.weighted_sum import sum_sparse
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.messages import MIXED, MOST_PLACES, Dense, Message, Several

_DENSITY, _GAINS, _COUNT = "density", "gains", "count"
_GAINS_BYTES = 8  # two float32


@frozen
class adaptive_top_k(Compressor):
    """The entries of largest size, as few as hold the wanted part of `||x||^2`: `||C(x)||^2 >= gain ||x||^2`.

    The density begins at `most`. Each message holds `||C(x)||^2 / ||x||^2` at its density and at half of it;
    all workers look at the means over `window` messages, then halve the density if half would be enough,
    double it if all is not, and leave it otherwise. Biased: use it inside `error_feedback`, with
    `all_gather`. A GPU is waited for once a step, since the density decides on the size of messages.

    Args:
        gain: wanted part of the squared norm, in (0, 1].
        most: largest density, a fraction of the entries in (0, 1].
        least: smallest density.
        window: messages between two decisions.

    Raises: ConfigError if `least` is above `most`.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import adaptive_top_k
        >>> x = torch.tensor([8.0, 2.0, 1.0, 0.0])
        >>> round_trip(adaptive_top_k(gain=0.8, most=0.5, window=1), [x, x])
        [tensor([8., 2., 0., 0.]), tensor([8., 0., 0., 0.])]

    Reference: Tyagi and Swany, "GraVAC: Adaptive Compression for Communication-Efficient Distributed DL
        Training", IEEE CLOUD 2023.

    Differs from the paper: the density also goes up again, and by the gain alone, not by measured throughput.
    """

    gain: Share = 0.9
    most: Share = 0.1
    least: Share = 0.001
    window: Steps = 50

    facts: ClassVar[CompressorFacts] = replace(
        identity.facts,
        kinds=frozenset({MIXED}),
        scope="model",
        linear=False,
        unbiased=False,
        follows_results=True,
        keeps_finite=False,
        slots={_DENSITY: "equal", _GAINS: "equal", _COUNT: "equal"},
        most_entries=MOST_PLACES,
    )

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ConfigError(
                f"adaptive_top_k: least={self.least} is above most={self.most}; the density goes from most "
                "down to least"
            )

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {
            _DENSITY: torch.tensor(self.most, dtype=torch.float64, device=bucket.device),
            _GAINS: torch.zeros(2, dtype=torch.float32, device=bucket.device),
            _COUNT: torch.tensor(0, device=bucket.device),
        }

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        density = float(state[_DENSITY])  # the one wait for a GPU: the host makes messages of this size
        cx.record("density", density)
        k, half = (num_kept(one, tensor.numel()) for one in (density, max(self.least, density / 2)))
        sizes, chosen = torch.topk(tensor.abs(), k, sorted=True)  # NaN comes first
        # The largest, so that no square leaves the range; as a row it makes what it divides float64, too.
        unit = sizes[:1].sum(0, keepdim=True, dtype=torch.float64)
        squares = (sizes / unit).square_()
        held = torch.stack([squares.sum(), squares[:half].sum()])
        total = (tensor / unit).square_().sum()
        gains = torch.where(unit == 0, 1.0, held / total).float()
        sent = pack_selected(tensor, chosen, k)
        parts = yield Several((sent, Dense(gains)))
        entries, gained = zip(*(_read(message) for _, message in parts), strict=True)
        weights = device_numbers(tuple(weight for weight, _ in parts), torch.float32, tensor.device)
        self._decide(state, density, (stacked(gained) * weights.view(-1, 1)).sum(0))
        weighted = [(weight, one) for (weight, _), one in zip(parts, entries, strict=True)]
        return sum_sparse(weighted, tensor), sent if keep_sent else None

    def _decide(self, state: State, density: float, gains: Tensor) -> None:
        """Double, halve or keep the density: the same on all ranks, which have read the same messages."""
        total, count, kept = state[_GAINS] + gains, state[_COUNT] + 1, state[_DENSITY]
        now, half = (total / self.window).double().unbind()
        doubled = torch.where(now < self.gain, min(self.most, 2 * density), kept)
        decided = torch.where(half >= self.gain, max(self.least, density / 2), doubled)
        is_time = count >= self.window
        state[_DENSITY] = torch.where(is_time, decided, kept)
        state[_GAINS], state[_COUNT] = torch.where(is_time, 0, total), torch.where(is_time, 0, count)

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        """The bytes of a message at the largest density."""
        return num_kept(self.most, numel) * (element_bytes + INDEX_BYTES) + COUNT_BYTES + _GAINS_BYTES


def _read(message: Message) -> tuple[Message, Tensor]:
    """The entries, and the gains."""
    assert isinstance(message, Several), f"expected entries and gains, got {message!r}"
    entries, gains = message.messages
    assert isinstance(gains, Dense)
    return entries, gains.tensor
