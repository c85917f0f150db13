"""Buckets are filled in order."""

import torch

from relaxcomm.tensors.bucket_building import build_buckets
from relaxcomm.tensors.items import Item


def test_the_first_bucket_is_complete_with_less():
    sizes = {"a": 1, "b": 3, "c": 2, "d": 6, "e": 1, "f": 9}
    items = [Item(name, torch.zeros(size)) for name, size in sizes.items()]
    names = [bucket.names for bucket in build_buckets(items, bucket_bytes=32, first_bytes=8)]
    assert names == [("a", "b"), ("c", "d"), ("e",), ("f",)]
    assert build_buckets(items, bucket_bytes=32)[0].names == ("a", "b", "c")
