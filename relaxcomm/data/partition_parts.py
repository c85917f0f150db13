"""The parts that a partition makes, looked at before anybody reads them: it may be a plug-in's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relaxcomm.data.partitions import Indices, Partition
from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import shown


def parts_of(
    partition: Partition, size: int, labels: Indices | None, num_parts: int, seed: int
) -> list[Indices]:
    """The parts of a data set, one for each worker or client, the same on all ranks.

    Args:
        partition: makes them.
        size: samples in the data set.
        labels: class of every sample, `[size]`, or None.
        num_parts: workers or clients.
        seed: of what it draws.

    Raises: ConfigError for too many or too few parts, an empty one, or what is no place in the data set.

    Example:
        >>> from relaxcomm.primitives import disjoint
        >>> [len(part) for part in parts_of(disjoint(), 10, None, 3, seed=0)]
        [4, 3, 3]
    """
    made: Any = partition.parts(size, labels, num_parts, seed)
    try:
        parts = [np.asarray(part) for part in made]
    except (TypeError, ValueError):
        raise ConfigError(
            f"the partition {partition!r} makes {shown(made)}; give the indices of each part's samples"
        ) from None
    if len(parts) != num_parts:
        raise ConfigError(
            f"the partition {partition!r} makes {len(parts)} parts where num_parts is {num_parts}; make one "
            "for each worker, or client"
        )
    for number, part in enumerate(parts):
        wrong = _fault_of(part, size)
        if wrong is not None:
            raise ConfigError(f"part {number} of {num_parts} of the partition {partition!r} {wrong}")
    return [part.astype(np.int64, copy=False) for part in parts]


def _fault_of(part: NDArray[Any], size: int) -> str | None:
    """What is wrong with a part, and what to do."""
    if part.ndim != 1:
        return f"has the shape {list(part.shape)}; give the indices of its samples, one after the other"
    if not len(part):
        return "holds no sample; give it one at least, or use fewer workers or clients"
    if not np.issubdtype(part.dtype, np.integer):
        return f"is of {part.dtype}; give the indices of its samples, which are whole numbers"
    least, most = int(part.min()), int(part.max())
    if least < 0 or most >= size:
        outside = least if least < 0 else most
        return f"holds the index {outside}; the data set has {size} samples, 0 to {size - 1}"
    return None
