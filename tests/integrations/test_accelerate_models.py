"""Which models and optimizers of one `prepare` have an engine together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm.errors import UsageError
from relaxcomm.integrations.accelerate_models import trained


def optimizer_of(*models):
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)


def compiled(model):
    """As what `torch.compile` makes, without the time that it takes."""
    made = nn.Module()
    made._orig_mod = model
    return made


def test_what_optimizers_share_belongs_together():
    first, second, third, alone, frozen = (nn.Linear(2, 2) for _ in range(5))
    one, other, both = optimizer_of(second), optimizer_of(third, first), optimizer_of(second, third)
    apart = optimizer_of(alone)
    given = [one, first, apart, "a loader", second, compiled(third), other, alone, frozen, both]
    assert trained(given) == [([alone], [apart]), ([first, second, third], [one, other, both])]


def test_an_optimizer_needs_its_model():
    with pytest.raises(UsageError, match="steps no parameter of a model in the same prepare"):
        trained([optimizer_of(nn.Linear(1, 1)), nn.Linear(1, 1)])
