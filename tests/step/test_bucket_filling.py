"""Which parameters share a bucket, by what is sent of them and from where."""

import pytest
import torch

from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.step.bucket_filling import fill_buckets
from relaxcomm.tensors.items import Item
from relaxcomm.testing import PretendGpu

MIB = 1 << 20


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
