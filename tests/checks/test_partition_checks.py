"""What a partition does wrong is found before a run is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from relaxcomm import ConfigError
from relaxcomm.checks.finding import Broken
from relaxcomm.checks.partitions_hold import partition_checks
from relaxcomm.plugin import Partition, frozen

_CALLS = itertools.count()


def broken_checks(made):
    @frozen
    class own(Partition):
        def parts(self, size, labels, num_parts, seed):
            return made(size, num_parts)

    found = set()
    for name, run in partition_checks(own()).items():
        try:
            run()
        except (Broken, ConfigError):
            found.add(name)
    return found


def only_for_two(size, num_parts):
    if num_parts != 2:
        raise ConfigError("there are two sites")
    return np.array_split(np.arange(size), 2)


@pytest.mark.parametrize(
    ("made", "broken"),
    [
        (lambda n, k: np.array_split(np.arange(n), k), set()),
        (only_for_two, set()),
        (lambda n, k: [np.arange(n)] + [[]] * (k - 1), {"parts", "repeats"}),
        (lambda n, k: np.array_split(np.arange(n), 2), {"parts", "repeats"}),
        (lambda n, k: np.array_split((np.arange(n) + next(_CALLS)) % n, k), {"repeats"}),
    ],
)
def test_found(made, broken):
    assert broken_checks(made) == broken
