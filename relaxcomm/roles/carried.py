"""What a primitive keeps, and what becomes of it when there is another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, TypeVar

from relaxcomm.errors import PluginError

T = TypeVar("T")

Carried: TypeAlias = Literal["equal", "mean", "share", "mean of shares", "sum", "part", "fresh"]
"""What becomes of a slot when there is another number of ranks.

"equal": ranks that are given the same results hold the same, so it is taken from one; those that should and
do not are refused, and of those that are given different ones the mean is taken. "mean": all take the mean.
"share": only the mean over the ranks counts, and stays, as with residuals; each takes the mean of some.
"mean of shares": all hold the mean of the "share" that is stated last before it, also when a rank is lost.
"sum": only the sum counts, and stays. "part": each holds its rank's part of one tensor, which is put together
and cut anew. "fresh": it is made anew for the parameters.
"""

ALIKE: frozenset[Carried] = frozenset({"equal", "mean of shares"})
"""What is said of a slot in which all ranks hold the same."""

Slots: TypeAlias = Mapping[str, Carried]
"""The slots that a primitive may keep, each with what becomes of it."""


def share_of(slots: Slots, mean: str) -> str:
    """The slot whose mean over the ranks another one is: the share that is stated last before it.

    Raises: PluginError if there is none.

    Example:
        >>> share_of({"0.mine": "share", "0.mean": "mean of shares", "0.residual": "share"}, "0.mean")
        '0.mine'
    """
    owner, before = mean.rpartition(".")[0], list(slots)[: list(slots).index(mean)]
    shares = [one for one in before if slots[one] == "share" and one.rpartition(".")[0] == owner]
    if not shares:
        raise PluginError(
            f"the slot {mean!r} is declared as 'mean of shares', and none before it as 'share'; declare the "
            "one whose mean it is just before it"
        )
    return shares[-1]


def nested(index: int, slots: Mapping[str, T]) -> dict[str, T]:
    """The slots of what is wrapped, or what is said of them, as they are called among those of the wrapper.

    Example:
        >>> nested(0, {"residual": "share"})
        {'0.residual': 'share'}
    """
    return {f"{index}.{slot}": one for slot, one in slots.items()}
