"""An outer rule that raises where a server applies it ends a simulation on every rank, and hangs none."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import Algorithm, CommunicationError, Rule, attach, simulate
from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives import average, deltas, quorum_average
from tests.models import take_step


@frozen
class failing(average):
    """Raises something once ranks have trained for a while, in a part of one rank alone."""

    facts = average.facts

    def apply(self, cx, bucket, state, result, base):
        if cx.membership.rank == 1 and base.abs().max() > 1.0:
            raise ZeroDivisionError("no step size")
        return super().apply(cx, bucket, state, result, base)


def train(group, rule):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"algorithm": Algorithm((rule,), name="failing"), "bucket_bytes": 70}
    with attach(model, optimizer, config, process_group=group):
        for _ in range(50):
            take_step(model(torch.ones(2, 3)).sum(), optimizer)


@pytest.mark.parametrize("delay", [0, 1])
def test_it_is_told_on_every_rank(delay):
    rule = Rule(payload=deltas(), exchange=quorum_average(quorum=1), outer=failing(), delay=delay)

    def rank(group):
        with pytest.raises(CommunicationError, match=r"service of rank 1 .*ZeroDivisionError: no step size"):
            train(group, rule)
        return True

    assert simulate(rank, 3) == [True] * 3
