"""Which parameters share a bucket, for the rules that an algorithm has for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.errors import CompositionError
from relaxcomm.replica.gradient_in_place import can_stay
from relaxcomm.tensors.bucket_building import build_buckets
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.shards import shard_sizes

_LARGE_SHARE = 2  # of a bucket: many messages cost more than copies where a round trip is long
_FIRST_BYTES = 1 << 20


def fill_buckets(
    items: Iterable[Item], order: Sequence[str], algorithm: Algorithm, bucket_bytes: int, world_size: int
) -> list[tuple[str, ...]]:
    """Names of the parameters of each bucket: rules that differ, or look at whole models, part them.

    A large gradient that can stay where it is has a bucket of its own. Where entries of a GPU's gradients are
    sent, the first bucket is small, as DistributedDataParallel's: the network begins when backward does. On a
    CPU, which does both, one bucket more costs more than that gains.

    Args:
        items: the trainable parameters.
        order: their names, as they go into buckets.
        algorithm: whose rules cover them.
        bucket_bytes: a bucket's capacity.
        world_size: number of ranks, each of whose parts of a bucket some exchanges code on their own.

    Raises: CompositionError for a bucket, or a part, of more entries than a rule's compressor takes.
    """

    def is_whole(item: Item) -> bool:
        """Whether a compressor looks at the whole model when it codes a parameter's entries."""
        rules = (algorithm.rules[index] for index in algorithm.covering(item.name))
        return any(rule.compressor.facts.scope == "model" for rule in rules)

    def key(item: Item) -> Hashable:
        covering = algorithm.covering(item.name)
        is_large = item.share_bytes >= bucket_bytes / _LARGE_SHARE and stays_in_place(item, algorithm)
        return (covering, item.name) if is_large else covering

    by_name = {item.name: item for item in items}
    on_gpu = any(item.tensor.device.type == "cuda" for item in by_name.values())
    begins_early = on_gpu and all(map(_sends_entries, algorithm.rules))
    buckets = build_buckets(
        (by_name[name] for name in order),
        bucket_bytes=bucket_bytes,
        first_bytes=_FIRST_BYTES if begins_early else None,
        key=key,
        whole=is_whole,
    )
    for bucket in buckets:
        rules = [algorithm.rules[index] for index in algorithm.covering(bucket.names[0])]
        _check_entries(bucket, rules, world_size)
    return [bucket.names for bucket in buckets]


def stays_in_place(item: Item, algorithm: Algorithm) -> bool:
    """Whether a gradient is exchanged where autograd has put it."""
    rules = (algorithm.rules[index] for index in algorithm.covering(item.name))
    return can_stay(item) and all(_takes_as_it_is(rule, item.tensor.numel()) for rule in rules)


def _check_entries(bucket: Bucket, rules: Iterable[Rule], world_size: int) -> None:
    whole = sum(item.share_bytes for item in bucket.items) // bucket.dtype.itemsize  # the same on all ranks
    for rule in rules:
        most, in_parts = rule.compressor.facts.most_entries, rule.exchange.facts.codes_parts
        numel = max(shard_sizes(whole, world_size)) if in_parts else whole
        if numel > most:
            where = f"each of the {world_size} parts of the bucket" if in_parts else "the bucket"
            raise CompositionError(
                f"{rule.compressor!r} takes at most {most:,} entries at once, and {where} of "
                f'{bucket.names[0]} has {numel:,}; have it look at less, with scope="bucket" and a smaller '
                "bucket_bytes, or use one that looks at blocks, such as chunk_top_k or dct_top_k"
            )


def _sends_entries(rule: Rule) -> bool:
    """Whether a rule sends gradients entry by entry while backward goes on; codes of buckets cost more."""
    at_once = rule.payload.facts.site == "backward" and not rule.delay
    return at_once and rule.compressor.facts.scope == "entry"


def _takes_as_it_is(rule: Rule, numel: int) -> bool:
    """Whether a rule sends gradients entry by entry, in full, and puts the result in their place."""
    replaces = rule.exchange.facts.takes_divided and rule.outer.facts.moves_model
    return _sends_entries(rule) and replaces and rule.compressor.contraction(numel) == 0.0
