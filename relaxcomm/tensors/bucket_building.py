"""Which tensors share a bucket."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item


def build_buckets(
    items: Iterable[Item],
    *,
    bucket_bytes: int,
    first_bytes: int | None = None,
    key: Callable[[Item], Hashable] = lambda item: None,
    whole: Callable[[Item], bool] = lambda item: False,
) -> list[Bucket]:
    """Fill buckets of at most `bucket_bytes` in the given order.

    A bucket holds one dtype, one device and one `key` (the rules that cover its tensors); a tensor
    larger than `bucket_bytes` has a bucket of its own.

    Args:
        items: tensors in the order in which they become ready.
        bucket_bytes: capacity in bytes.
        first_bytes: with so many the first bucket is complete, so that it is sent early; None: like others.
        key: tensors with different keys never share a bucket.
        whole: tensors that fill one bucket however large it gets; the same for equal keys.

    Returns:
        Buckets in the order in which they become complete.
    """
    open_buckets: dict[Hashable, list[Item]] = {}
    sizes: dict[Hashable, int] = {}
    complete: list[list[Item]] = []
    first: Hashable = None
    for item in items:
        place = (item.tensor.dtype, item.tensor.device, key(item))
        size, first = item.share_bytes, first or place
        if place in open_buckets and not whole(item):
            enough = first_bytes if place == first and not complete else None
            if sizes[place] + size > bucket_bytes or (enough is not None and sizes[place] >= enough):
                complete.append(open_buckets.pop(place))
        if place not in open_buckets:
            open_buckets[place], sizes[place] = [], 0
        open_buckets[place].append(item)
        sizes[place] += size
    complete.extend(open_buckets.values())
    return [Bucket(index, content) for index, content in enumerate(complete)]
