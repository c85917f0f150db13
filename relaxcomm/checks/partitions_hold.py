"""Checks of partitions: the parts that they make, for several numbers of workers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from relaxcomm.checks.conduct import checks_of
from relaxcomm.checks.finding import expect
from relaxcomm.data import Partition
from relaxcomm.data.partition_parts import parts_of
from relaxcomm.data.partitions import Indices
from relaxcomm.errors import ConfigError

_SIZE, _CLASSES = 60, 4
_NUMBERS = (1, 2, 3, 5)


def _trials(partition: Partition) -> Iterator[tuple[int, Indices | None, int, int]]:
    """Arguments of `parts`, without those that it refuses itself."""
    labels = np.arange(_SIZE) % _CLASSES if partition.needs_labels else None
    for number in _NUMBERS:
        try:
            partition.parts(_SIZE, labels, number, 0)
        except ConfigError:
            continue
        yield _SIZE, labels, number, 0


def each_has_a_part(partition: Partition) -> None:
    """There are as many parts as were asked for, of samples that are there, and none is empty."""
    for arguments in _trials(partition):
        parts_of(partition, *arguments)


def parts_come_again(partition: Partition) -> None:
    """Each rank makes all parts for itself, so nothing is drawn that the seed does not decide."""
    for arguments in _trials(partition):
        one, other = (parts_of(partition, *arguments) for _ in range(2))
        same = all(np.array_equal(*pair) for pair in zip(one, other, strict=True))
        expect(same, f"makes other parts for {arguments[2]} workers when asked again with the same seed")


partition_checks = checks_of({"parts": each_has_a_part, "repeats": parts_come_again})
"""The checks of a partition, by name."""
