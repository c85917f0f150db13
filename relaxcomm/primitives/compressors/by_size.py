"""Small tensors apart from large ones."""

from __future__ import annotations

from relaxcomm.fields.frozen import Steps, frozen
from relaxcomm.primitives.compressors.by_tensor import ByTensor
from relaxcomm.roles import Compressor


@frozen
class by_size(ByTensor):
    """Code tensors of fewer than `threshold` entries with `less`, all others with `greater`.

    Where an exchange cuts tensors into parts, the size of the part counts.

    Args:
        threshold: in entries.
        less: for small tensors, such as `identity()`.
        greater: for large ones.

    Raises: CompositionError for compressors of several messages.

    Example:
        >>> by_size(threshold=1000, less=identity(), greater=error_feedback(compressor=sign()))
        by_size(threshold=1000, less=identity(), greater=error_feedback(compressor=sign()))

    Reference: Ryabinin et al., "Moshpit SGD", NeurIPS 2021, whose library chooses so.
    """

    threshold: Steps
    less: Compressor
    greater: Compressor

    def __post_init__(self) -> None:
        self.check_both()

    @property
    def both(self) -> tuple[Compressor, Compressor]:
        return self.less, self.greater

    @property
    def plain(self) -> Compressor:
        return by_size(threshold=self.threshold, less=self.less.plain, greater=self.greater.plain)

    def choose(self, name: str, numel: int) -> int:
        return int(numel >= self.threshold)
