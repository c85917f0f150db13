"""Parts of a model of about equal size, called `k/n`: the k-th of n."""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from relaxcomm.errors import CompositionError

_FRAGMENT = re.compile(r"(\d+)/(\d+)")


def is_fragment(pattern: str) -> bool:
    """Whether a pattern of names is a fragment."""
    return _parts(pattern) is not None


def check(pattern: str) -> None:
    """Refuse a fragment that there is not.

    Raises: CompositionError, naming it.
    """
    parts = _parts(pattern)
    if parts is not None and not 1 <= parts[0] <= parts[1]:
        raise CompositionError(
            f"select {pattern!r} is not a fragment: k/n is the k-th of n, with k from 1 to n"
        )


def most(patterns: Iterable[str]) -> int:
    """Into how many fragments a model is cut at most; 0 without any.

    Example:
        >>> most(["1/2", "head.*", "3/4"])
        4
    """
    return max((parts[1] for one in patterns if (parts := _parts(one))), default=0)


def resolve(patterns: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Patterns in which fragments are replaced by the names in them.

    Args:
        patterns: of names; some are fragments.
        sizes: of all parameters, in the model's order.

    Raises: CompositionError if there are fewer parameters than fragments.

    Example:
        >>> resolve(["2/2", "head.*"], {"a": 5, "b": 3, "c": 3})
        ('b', 'c', 'head.*')
    """
    found: list[str] = []
    for pattern in patterns:
        parts = _parts(pattern)
        if parts is None:
            found.append(pattern)
            continue
        index, count = parts
        if count > len(sizes):
            raise CompositionError(
                f"select {pattern!r}: a model of {len(sizes)} trainable parameters cannot be cut into "
                f"{count} fragments; use at most {len(sizes)}"
            )
        ends = [0, *_cuts(list(sizes.values()), count), len(sizes)]
        names = list(sizes)[ends[index - 1] : ends[index]]
        found += [glob.escape(name) for name in names]
    return tuple(found)


def share(patterns: Sequence[str]) -> float:
    """The share of a model that patterns cover where only its size is known: all of it with one of names.

    Example:
        >>> share(["1/4", "3/4"]), share(["1/4", "head.*"])
        (0.5, 1.0)
    """
    parts = {*map(_parts, patterns)}
    return min(1.0, sum(1.0 if one is None else 1 / one[1] for one in parts))


def _cuts(sizes: Sequence[int], count: int) -> list[int]:
    """Where each fragment but the last ends: near equal shares, and none is empty."""
    sums = list(itertools.accumulate(sizes, initial=0))
    cuts = [0]
    for index in range(1, count):
        share = sums[-1] * index / count
        possible = range(cuts[-1] + 1, len(sizes) - (count - index) + 1)
        cuts.append(min((abs(sums[cut] - share), cut) for cut in possible)[1])
    return cuts[1:]


def _parts(pattern: str) -> tuple[int, int] | None:
    """k and n of a fragment; None for a pattern of names, which have no slashes."""
    found = _FRAGMENT.fullmatch(pattern)
    return None if found is None else (int(found[1]), int(found[2]))
