"""Whether an optimizer keeps nothing yet, or never will."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import UsageError
from relaxcomm.replica.replica import Replica


def parameter(*, has_gradient: bool = True) -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.ones(2))
    made.grad = torch.ones(2) if has_gradient else None
    return made


def check(held: list[torch.nn.Parameter], asked: torch.nn.Parameter, *, steps: int, scaled: bool) -> None:
    optimizer = torch.optim.Adam(held)
    for _ in range(steps):
        optimizer.step()
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    replica = Replica(torch.nn.ParameterDict({"a": asked}), [optimizer], scaler, 256)
    assert replica.optimizer_state(*replica.pack(replica.parameters), ["row_var"]) == [None]


def test_what_a_scaler_has_skipped_or_nobody_has_used_is_not_trained_yet():
    check([one := parameter()], one, steps=0, scaled=True)
    check([one := parameter(has_gradient=False)], one, steps=1, scaled=False)


def test_what_is_never_kept_is_refused():
    with pytest.raises(UsageError, match=r"Adam keeps no 'row_var' of a, .* it keeps 'step', 'exp_avg'"):
        check([one := parameter()], one, steps=1, scaled=True)
    with pytest.raises(UsageError, match="it keeps nothing: "):
        check([one := parameter()], one, steps=0, scaled=False)
    with pytest.raises(UsageError, match=r"no optimizer holds a, .* give it to an optimizer, or freeze it"):
        check([parameter()], parameter(), steps=1, scaled=True)
