"""A slot keeps its shape and dtype, so that what is saved can be loaded."""

from dataclasses import replace

import pytest
import torch

from relaxcomm import PluginError, Rule, trajectory
from relaxcomm.plugin import Outer, frozen
from relaxcomm.primitives import all_reduce, deltas, sgd
from relaxcomm.step.kept_slots import Slots
from relaxcomm.testing import PretendGpu


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


def test_a_slot_that_init_has_not_made():
    slots, words = (
        Slots({"n": torch.tensor(0)}, "counting()"),
        r"counting\(\) has no slot 'm'; make it in init",
    )
    with pytest.raises(KeyError, match=words):
        slots["m"]
    with pytest.raises(KeyError, match=words):
        slots["m"] = torch.tensor(1)
    assert slots.get("m") is None


def test_init_makes_tensors():
    with pytest.raises(PluginError, match=r"init of counting\(\) made 0 as the slot 'n'; make a tensor"):
        Slots({"n": 0}, "counting()")


@pytest.mark.parametrize("good", [True, False])
def test_what_lies_together_is_chosen_in_one_launch_and_buffers_in_none(good):
    with PretendGpu() as gpu:
        made = {
            "0.e": torch.zeros(2),
            "_spare": torch.zeros(2),
            "1.e": torch.zeros(1),
            "n": torch.zeros(1, 1),
        }
        slots = Slots({slot: value.to("cuda") for slot, value in made.items()}, "parts()")
        for _ in range(2):
            assigned = torch.tensor([1.0, 2.0, 3.0]).to("cuda")
            slots["0.e"], slots["1.e"] = assigned[:2], assigned[2:]
            slots["_spare"], slots["n"] = torch.ones(2).to("cuda"), torch.full((1, 1), 4.0).to("cuda")
            decided = torch.tensor(good).to("cuda")
            gpu.work.clear()
            slots.commit(decided)
        assert gpu.work.kernels == {"where": 2}  # what is kept lies together, too, from the first time on
        found = [slots[slot].cpu().flatten().tolist() for slot in ("0.e", "1.e", "n")]
    assert found == ([[1.0, 2.0], [3.0], [4.0]] if good else [[0.0, 0.0], [0.0], [0.0]])
