"""Buckets keep the layout of what lies in them."""

import torch

from relaxcomm.tensors.buckets import Bucket, Item


def test_channels_last_keeps_its_strides_in_a_bucket():
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    bucket = Bucket(0, [Item("a", torch.randn(5)), Item("b", weight)])
    flat = bucket.gather(bucket.empty())
    assert bucket.views(flat)[1].stride() == weight.stride()
    torch.testing.assert_close(bucket.views(flat)[1], weight, rtol=0, atol=0)
