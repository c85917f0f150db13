"""The position in the data for another number of ranks: the rest of an epoch is dealt out among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaxcomm.data.position import Position
from relaxcomm.errors import ConfigError


def carried_loaders(loaders: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """How far data sets were read, the same for every new rank.

    Args:
        loaders: of each old rank, in rank order; ranks may have begun to read data of other kinds in
            another order.

    Raises: ConfigError for ranks that have read other data, and in the middle of a round of clients.
    """
    loaders = [sorted(theirs, key=lambda one: tuple(one["kind"])) for theirs in loaders]
    kinds = [[tuple(one["kind"]) for one in theirs] for theirs in loaders]
    if any(theirs != kinds[0] for theirs in kinds):
        raise ConfigError(
            f"ranks have read different data, {str(kinds)[:300]}, so nobody can share the rest out; start "
            f"{len(loaders)} workers"
        )
    return [_carried(_begun(theirs)) for theirs in zip(*loaders, strict=True)]


def _begun(ranks: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Where some have gone on to another epoch, those that have read theirs to its end begin the next."""
    if len({one["epoch"] for one in ranks}) == 1:
        return ranks
    return [
        {**one, "epoch": one["epoch"] + 1, "place": Position()} if one["is_over"] else one for one in ranks
    ]


def _carried(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How far one data set was read. Ranks without a common step may be in several epochs, all shared out."""
    positions = [Position(*one["place"]) for one in ranks]
    if any(one.batches and not one.unit for one in positions):
        raise ConfigError(
            "the state was saved in the middle of a round of clients, whose rest cannot be shared out; "
            f"start {len(ranks)} workers, or save between two rounds"
        )
    lead = min(ranks, key=lambda one: int(one["epoch"]))
    first, last = lead["epoch"], max(one["epoch"] for one in ranks)
    unit = max((one.unit for one in positions if one.samples), default=len(ranks))
    whole = Position(lead["kind"][1], 0, unit)
    dealt = {epoch: list(kept) for epoch, kept in lead["dealt"]}
    for epoch in range(first, last + 1):
        read = [
            position if one["epoch"] == epoch else whole if one["epoch"] > epoch else Position()
            for one, position in zip(ranks, positions, strict=True)
        ]
        if any(one.samples for one in read):
            dealt.setdefault(epoch, []).append([list(one) for one in read])
    behind = [position for one, position in zip(ranks, positions, strict=True) if one["epoch"] == first]
    batches = max(one.batches for one in behind)
    return {
        "kind": list(lead["kind"]),
        "anew": lead["anew"],
        "epoch": first,
        "first": lead["first"],
        "place": list(Position(batches=batches, unit=unit) if batches else Position()),
        "is_over": False,
        "dealt": [[epoch, kept] for epoch, kept in sorted(dealt.items())],
        "in_round": any(one["in_round"] for one in ranks),
    }
