"""Which parameters go into which bucket, and which rules exchange each bucket."""

from __future__ import annotations

from collections.abc import Sequence

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.tensors.buckets import Bucket, Item, build_buckets


class Assignment:
    """The buckets, and what follows from them and is asked for in every step.

    Args:
        items: the trainable parameters.
        names: of each bucket's parameters, the same on all ranks.
        algorithm: whose rules cover them.
    """

    def __init__(self, items: Sequence[Item], names: Sequence[Sequence[str]], algorithm: Algorithm) -> None:
        by_name = {item.name: item for item in items}
        self.buckets = [
            Bucket(index, [by_name[name] for name in content]) for index, content in enumerate(names)
        ]
        self.rules_of = [algorithm.covering(bucket.names[0]) for bucket in self.buckets]
        """Indices of the rules that cover a bucket, by its index."""
        self.covered = [
            [bucket for bucket in self.buckets if index in self.rules_of[bucket.index]]
            for index in range(len(algorithm.rules))
        ]
        """The buckets that a rule covers, by its index."""


def assign(
    items: Sequence[Item], order: Sequence[str], algorithm: Algorithm, bucket_bytes: int
) -> list[tuple[str, ...]]:
    """Names of the parameters of each bucket: rules that differ, or look at whole models, part them.

    Args:
        items: the trainable parameters.
        order: their names, as they go into buckets.
        algorithm: whose rules cover them.
        bucket_bytes: a bucket's capacity.
    """

    def is_whole(item: Item) -> bool:
        """Whether a compressor looks at the whole model when it codes a parameter's entries."""
        rules = (algorithm.rules[index] for index in algorithm.covering(item.name))
        return any(rule.compressor.coding_scope == "model" for rule in rules)

    by_name = {item.name: item for item in items}
    buckets = build_buckets(
        (by_name[name] for name in order),
        bucket_bytes=bucket_bytes,
        key=lambda item: algorithm.covering(item.name),
        whole=is_whole,
    )
    return [bucket.names for bucket in buckets]
