"""What is assigned to a slot shares no memory with what its owner is lent."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.unshared import UnsharedState

FLAT = torch.arange(12.0)


def lent():
    """A message, and a bucket of a tensor without entries, of one alone, and of parts of a larger one."""
    tensors = [torch.empty(0), torch.ones(2, 3), FLAT[2:6], FLAT[6:]]
    return torch.zeros(16), Bucket(0, [Item(str(index), one) for index, one in enumerate(tensors)])


VALUES = {
    "the message": lambda message, tensors: message,
    "a part of it": lambda message, tensors: message[3:5],
    "a tensor": lambda message, tensors: tensors[1],
    "a view of it": lambda message, tensors: tensors[1].t()[1:],
    "a part of a larger one": lambda message, tensors: tensors[3],
    "what holds several": lambda message, tensors: FLAT,
}


@pytest.mark.parametrize("case", VALUES)
def test_of_what_is_lent_a_copy_is_kept(case):
    message, bucket = lent()
    slots: dict[str, torch.Tensor] = {}
    value = VALUES[case](message, bucket.tensors)
    UnsharedState(slots, message, bucket)["slot"] = value
    assert torch.equal(slots["slot"], value)
    assert slots["slot"].untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "value", [torch.zeros(16), torch.zeros(0), torch.zeros(())], ids=lambda one: one.shape
)
def test_other_memory_is_kept_itself(value):
    slots: dict[str, torch.Tensor] = {}
    UnsharedState(slots, *lent())["slot"] = value
    assert slots["slot"] is value


def test_memory_may_move_between_two_assignments():
    parameter, slots = torch.nn.Parameter(torch.zeros(3)), dict[str, torch.Tensor]()
    state = UnsharedState(slots, Bucket(0, [Item("weight", parameter)]))
    first, second = parameter.data, torch.ones(3)
    for held, other in ((first, second), (second, first)):
        parameter.data = held
        for value in (held, other):
            state["slot"] = value
            assert (slots["slot"] is value) == (value is other)


class Calls(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names = [*getattr(self, "names", []), str(function)]
        return function(*args, **(kwargs or {}))


def test_to_look_for_it_makes_no_views():
    """A view of each of many small parameters would take longer than all else that an assignment does."""
    message, bucket = lent()
    with Calls() as calls:
        UnsharedState({}, message, bucket)["slot"] = FLAT.clone()
    assert calls.names == ["aten.clone.default"]
