"""A slot keeps its shape and dtype, so that what is saved can be loaded."""

from dataclasses import replace

import pytest
import torch

from relaxcomm import PluginError, Rule, trajectory
from relaxcomm.plugin import Outer, frozen
from relaxcomm.primitives import all_reduce, deltas, sgd
from relaxcomm.step.kept_slots import Slots


@frozen
class grown(Outer):
    """Broadcasting makes a slot of as many entries as the bucket of what was a number."""

    facts = replace(sgd(lr=0.5).facts, averages=False, slots={"squares": "equal"})

    def init(self, bucket):
        return {"squares": torch.zeros(())}

    def apply(self, cx, bucket, state, result, base):
        state["squares"] = state["squares"] + result.square()
        return base - result


def test_a_rule_names_the_primitive():
    with pytest.raises(
        PluginError, match=r"grown\(\) set its slot 'squares' to \[1\] torch.float32, and init"
    ):
        trajectory(Rule(payload=deltas(), exchange=all_reduce(), outer=grown()), [[1.0, 3.0]])


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (torch.tensor(0.9), "[] torch.float32"),
        (torch.tensor([1]), "[1] torch.int64"),
        (torch.tensor(1, dtype=torch.int32), "[] torch.int32"),
        (1, "1"),
        (None, "None"),
    ],
)
def test_another_form_is_refused(value, got):
    slots = Slots({"n": torch.tensor(0), "_spare": torch.zeros(2)}, "counting()")
    with pytest.raises(PluginError) as raised:
        slots["n"] = value
    assert f"counting() set its slot 'n' to {got}, and init made [] torch.int64" in str(raised.value)
    slots["_spare"] = torch.zeros(3)  # a buffer, of no meaning
    slots["n"] = torch.tensor(1)
    slots.commit(True)
    assert slots.export() == {"n": torch.tensor(1)}


def test_init_makes_tensors():
    with pytest.raises(PluginError, match=r"init of counting\(\) made 0 as the slot 'n'; make a tensor"):
        Slots({"n": 0}, "counting()")
