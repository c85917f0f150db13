"""What a communication hook codes at once, where DDP makes other buckets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm import Rule, UsageError
from relaxcomm.integrations.hook_units import HookUnits
from relaxcomm.integrations.hooked_model import HookedModel
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import all_gather, error_feedback, gradients, top_k


def test_residuals_stay_with_what_was_asked_for_and_move_with_what_changes():
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(4)) for name in "abc"})
    compressor = error_feedback(compressor=top_k(density=0.5))
    rule = Rule(payload=gradients(), compressor=compressor, exchange=all_gather())
    units = HookUnits(rule, HookedModel(model), Membership(0, 3))

    def backward(*names: str, counts: bool = True) -> dict[str, float]:
        """The residual of each parameter, before a backward that asks for them in this order."""
        found = {}
        for index, name in enumerate(names):
            unit = units.of(index, [model[name]])
            found[name] = float(unit.slots["compressor"]["residual"].sum())
            unit.slots["compressor"]["residual"] = torch.full((4,), float(ord(name)))
            unit.slots.commit(counts)
        units.end_backward()
        return found

    assert backward("a", "b", "c") == {"a": 0, "b": 0, "c": 0}
    rest = {name: 4.0 * ord(name) for name in "abc"}
    assert backward("a", "c", "b") == rest, "the first bucket stays, others change"
    assert backward("a", "c", "b") == rest
    assert backward("c", "a", "b", counts=False) == rest, "a scaler skips the step"
    assert backward("c", "a", "b") == rest, "what has moved stays"
    with pytest.raises(UsageError, match="another DistributedDataParallel, whose residuals would be lost"):
        units.of(0, [nn.Parameter(torch.zeros(4))])
