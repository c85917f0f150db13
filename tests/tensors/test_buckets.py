"""Buckets keep the layout of what lies in them, and are filled in order."""

import pytest
import torch

from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.step.bucket_filling import fill_buckets
from relaxcomm.tensors.bucket_building import build_buckets
from relaxcomm.tensors.buckets import Bucket, Item
from relaxcomm.testing import PretendGpu

MIB = 1 << 20


def test_channels_last_keeps_its_strides_in_a_bucket():
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    bucket = Bucket(0, [Item("a", torch.randn(5)), Item("b", weight)])
    flat = bucket.gather(bucket.empty())
    assert bucket.views(flat)[1].stride() == weight.stride()
    torch.testing.assert_close(bucket.views(flat)[1], weight, rtol=0, atol=0)


def test_the_first_bucket_is_complete_with_less():
    sizes = {"a": 1, "b": 3, "c": 2, "d": 6, "e": 1, "f": 9}
    items = [Item(name, torch.zeros(size)) for name, size in sizes.items()]
    names = [bucket.names for bucket in build_buckets(items, bucket_bytes=32, first_bytes=8)]
    assert names == [("a", "b"), ("c", "d"), ("e",), ("f",)]
    assert build_buckets(items, bucket_bytes=32)[0].names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("algorithm", "first"),
    [("bsp", "ab"), ("delayed_sgd", "abcd"), ("signsgd", "abcd"), ("local_sgd", "abcd")],
    ids=str,
)
def test_only_entries_of_a_gpus_gradients_are_sent_early(algorithm, first):
    def first_of(device: str) -> str:
        items = [Item(name, torch.zeros(MIB // 8, device=device)) for name in "abcdef"]
        return "".join(fill_buckets(items, list("abcdef"), parse_algorithm(algorithm), 2 * MIB)[0])

    with PretendGpu():
        assert first_of("cuda") == first
    assert first_of("cpu") == first_of("meta") == "abcd"  # the latter is how a plan is made
