"""What is sent is looked at before it goes, where results do not show that it is not finite."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import relaxcomm
from relaxcomm import primitives
from relaxcomm.step.parameter_results import look_at
from relaxcomm.step.plan import Task
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.testing import PretendGpu

WORLD = SimpleNamespace(rank=1, is_any_shard=lambda is_bad, label: is_bad)
BOUND = SimpleNamespace(world=WORLD, clock=SimpleNamespace(step=7))
RULE = relaxcomm.Rule(payload=primitives.parameters(), exchange=primitives.pairwise(), delay="unbounded")


@pytest.mark.parametrize("more", [0, 2], ids=["its tensors", "and what a payload adds"])
def test_the_host_waits_once_where_all_is_finite(more):
    with PretendGpu() as gpu:
        bucket = Bucket(0, [Item("weight", torch.ones(3, device="cuda")), Item("bias", torch.ones(1).cuda())])
        sent = torch.ones(4 + more, device="cuda")
        gpu.work.clear()
        look_at(BOUND, Task(0, RULE, bucket, "sent"), sent)
        assert len(gpu.work.waits) == 1


@pytest.mark.parametrize(("place", "name"), [(1, "parameter weight"), (3, "bias"), (5, "what is sent")])
def test_what_is_not_finite_is_named(place, name):
    bucket = Bucket(0, [Item("weight", torch.nn.Parameter(torch.ones(3))), Item("bias", torch.ones(1))])
    sent = torch.ones(6)
    sent[place] = torch.nan
    with pytest.raises(relaxcomm.NonFiniteError, match=f"step 7: NaN or infinity in .*{name} on rank 1"):
        look_at(BOUND, Task(0, RULE, bucket, "sent"), sent)
